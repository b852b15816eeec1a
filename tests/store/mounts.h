/*
 * Mounts of a test's own: nobody else sees them, and they are gone with its process. They take root,
 * or a kernel that lets users have namespaces; without either the test fails, and says so.
 */
#ifndef STORE_MOUNTS_H
#define STORE_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

void own_mounts(void); /* before all others */
void mount_tmpfs(const char *at, const char *size);
void mount_again(const char *from, const char *at); /* a folder at a second place */
void mount_read_only(const char *at, bool yes);

/* Root is bound by permissions like anybody, and so is what it starts. */
void obey_permissions(void);

/* From here on the kernel knows no nameless files, or no setting aside of blocks. */
void without_nameless_files(void);
void without_set_aside(void);

/* `leasehold --store path words…` ends with this exit code, and its output has these parts. */
void expect_program(const char *path, const char *const words[], int code, const char *out,
                    const char *err);

/* Take all room of the file system that `path` is on, into that file. */
void fill_up(const char *path);

#endif
