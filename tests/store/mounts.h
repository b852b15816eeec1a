/* Mounts that only the test's process sees, and that end with it. They need root, or a kernel that
 * allows user namespaces. Without either the test fails with a message. */
#ifndef STORE_MOUNTS_H
#define STORE_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

void own_mounts(void); /* call it before the others */
void mount_tmpfs(const char *at, const char *size);
void mount_again(const char *from, const char *at); /* mount a folder at a second place */
void mount_read_only(const char *at, bool yes);

/* From here on permissions bind root and its children, as any other user. */
void obey_permissions(void);

/* From here on the kernel supports no nameless files, or no allocation of blocks. */
void without_nameless_files(void);
void without_set_aside(void);

/* Run `leasehold --store path words…`. It must end with this exit code, and its output must contain
 * these parts. */
void expect_program(const char *path, const char *const words[], int code, const char *out,
                    const char *err);

/* Fill the file system of `path` with that file. */
void fill_up(const char *path);

#endif
