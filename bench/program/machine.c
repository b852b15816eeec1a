/*
 * The machine that is measured: processor, kernel, file system, and how long its disk takes to sync.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"

enum { SYNCS = 300, LOG_PAGES = 100 };

/** The median time of fdatasync() after writing a page. The pages of the file are written again and again, as the
 *  store does with its log. */
static bool measure_sync(const char *folder, int64_t *out)
{
    int64_t took[SYNCS];
    char page[4096], path[1100];
    struct bench_result result = {0};
    bool fine = true;
    int fd;

    snprintf(path, sizeof path, "%s/sync", folder);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return cli_error(0, "could not write to \"%s\"", folder) != 0;
    memset(page, 'x', sizeof page);
    for (int i = 0; i < SYNCS && fine; i++) {
        fine = pwrite(fd, page, sizeof page, i % LOG_PAGES * (off_t)sizeof page) == sizeof page;
        took[i] = -bench_ns();
        fine = fine && fdatasync(fd) == 0;
        took[i] += bench_ns();
    }
    close(fd);
    unlink(path);
    if (!fine)
        return cli_error(0, "could not write to \"%s\"", folder) != 0;
    percentiles(took, SYNCS, &result);
    *out = result.p50_ns;
    return true;
}

static void file_system_name(const char *folder, char *out, size_t len)
{
    static const struct {
        long magic;
        const char *name;
    } known[] = {{0xef53, "ext4"},          {0x58465342, "xfs"},       {0x9123683e, "btrfs"},
                 {0x01021994, "tmpfs"},     {0x794c7630, "overlayfs"}, {0x2fc12fc1, "zfs"},
                 {(long)0xf2f52010, "f2fs"}};
    struct statfs fs;

    if (statfs(folder, &fs) != 0)
        memset(&fs, 0, sizeof fs);
    snprintf(out, len, "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].magic == (long)fs.f_type)
            snprintf(out, len, "%s", known[i].name);
}

static void cpu_name(char *out, size_t len)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];

    snprintf(out, len, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", strlen("model name")) == 0) {
            const char *name = strchr(line, ':');
            if (name != NULL)
                snprintf(out, len, "%.*s", (int)strcspn(name + 2, "\n"), name + 2);
            break;
        }
    if (file != NULL)
        fclose(file);
}

bool bench_machine(const char *folder, struct bench_machine *out)
{
    struct utsname name;

    memset(out, 0, sizeof *out);
    if (uname(&name) == 0)
        snprintf(out->kernel, sizeof out->kernel, "%s %s %s", name.sysname, name.release,
                 name.machine);
    cpu_name(out->cpu, sizeof out->cpu);
    file_system_name(folder, out->file_system, sizeof out->file_system);
    out->cores = sysconf(_SC_NPROCESSORS_ONLN);
    return measure_sync(folder, &out->fdatasync_ns);
}
