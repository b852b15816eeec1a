/* See copies.h. */
#include "store/copies.h"

#include "store/mounts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

char kept[4300];

void backup(lh_store *store, const char *path, lh_backup_opts opts)
{
    if (lh_backup(store, path, &opts) != LH_OK)
        FAIL("could not copy to \"%s\": %s", path, lh_errmsg(store));
}

void expect_no_backup(lh_store *store, const char *path, lh_backup_opts opts, int status,
                      const char *part)
{
    EXPECT_STATUS(lh_backup(store, path, &opts), status);
    EXPECT_CONTAINS(lh_errmsg(store), part);
}

void restore(const char *copy)
{
    char why[512] = "";
    int rc = lh_restore("store.db", copy, NULL, kept, sizeof kept, why, sizeof why);

    if (rc != LH_OK)
        FAIL("could not restore \"%s\": %s: %s", copy, lh_status_name(rc), why);
}

void expect_no_restore(const char *copy, int status, const char *part)
{
    char why[512] = "";

    EXPECT_STATUS(lh_restore("store.db", copy, NULL, kept, sizeof kept, why, sizeof why), status);
    EXPECT_CONTAINS(why, part);
}

void own_disk_fill(const char *filler, int64_t but)
{
    static char block[1 << 16];
    struct statvfs fs;
    int fd = open(filler, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    EXPECT(fd >= 0);
    while (fstatvfs(fd, &fs) == 0 && (int64_t)(fs.f_bavail * fs.f_frsize) > but &&
           write(fd, block, sizeof block) > 0)
        ;
    (void)close(fd);
}

int files_with(const char *folder, const char *part)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int n = 0;

    EXPECT(dir != NULL);
    while ((entry = readdir(dir)) != NULL)
        n += strstr(entry->d_name, part) != NULL;
    (void)closedir(dir);
    return n;
}

int64_t jobs_in(const char *path)
{
    lh_store *store = store_open(path, (lh_open_opts){.read_only = true});
    int64_t n = counts_of(store, "q").pending;

    store_check(store);
    lh_close(store);
    return n;
}

lh_store_info info_of(lh_store *store)
{
    lh_store_info info;

    EXPECT_OK(lh_store_status(store, &info));
    return info;
}

lh_job job_of(lh_store *store, int64_t id)
{
    lh_jobs *jobs = NULL;

    EXPECT_OK(lh_job_get(store, id, &jobs));
    lh_job job = jobs->job[0];
    lh_jobs_free(jobs);
    return job;
}

void own_disk(const char *folder)
{
    EXPECT_EQ(mkdir(folder, 0700), 0);
    own_mounts();
    mount_tmpfs(folder, "32m");
}

lh_job claim(lh_store *store, const char *queue, const char *worker, int64_t lease_ms)
{
    lh_jobs *jobs = take(store, queue, worker, lease_ms);

    if (jobs == NULL)
        FAIL("there is nothing to claim in \"%s\"", queue);
    lh_job job = jobs->job[0];
    lh_jobs_free(jobs);
    return job;
}

void expect_nothing(lh_store *store, const char *queue)
{
    EXPECT(take(store, queue, "other", 60000) == NULL);
}

int complete(lh_store *store, const lh_job *job)
{
    return lh_complete(store, &(lh_done){.job = job->id, .token = job->token}, 1, NULL, NULL);
}
