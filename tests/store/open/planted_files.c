/* Files beside the database that another user has made. In a folder where other users may create
 * files, a user who cannot write the database must not be able to run, read, crash or block
 * anything through them. */
#include "store/crashed.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OWNER = 20001, STRANGER = 20002, MEMBER = 20003, GROUP = 20004 };

static const char *const suffixes[] = {"-lease", "-wal", "-shm", "-journal"};
enum { SUFFIXES = 4 };

static void need_root(void)
{
    if (geteuid() != 0)
        test_skip("needs root, to act as another user");
}

static const char *beside(const char *suffix)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "store.db%s", suffix);
    return name;
}

static void make_store_with_job(void)
{
    lh_store *store = store_new();
    (void)add(store, "mail", "x");
    lh_close(store);
}

/* Run a function as another user, in another process. */
static void as_user(uid_t uid, void (*doing)(void))
{
    pid_t pid = test_fork();
    if (pid == 0) {
        EXPECT_EQ(setgroups(uid == STRANGER ? 0 : 1, (gid_t[]){GROUP}), 0);
        EXPECT_EQ(setresgid(uid, uid, uid), 0);
        EXPECT_EQ(setresuid(uid, uid, uid), 0);
        doing();
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).code, 0);
}

/* A folder like /tmp. */
static void stand_in_shared_folder(void)
{
    EXPECT_EQ(chmod(".", 0755), 0);
    EXPECT_EQ(mkdir("shared", 0700), 0);
    EXPECT_EQ(chmod("shared", 01777), 0);
    EXPECT_EQ(chdir("shared"), 0);
}

static void expect_refused(const char *file, const char *part)
{
    expect_open("store.db", (lh_open_opts){.create = true}, LH_EINVAL, part);
    expect_open("store.db", (lh_open_opts){.repair = true}, LH_EINVAL, file);
}

/* ---- the owner of a file ---- */

static const char *planted;

static void plant(void)
{
    int fd = open(planted, O_RDWR | O_CREAT | O_EXCL, 0644);
    EXPECT(fd >= 0);
    EXPECT_EQ(ftruncate(fd, 4096), 0);
    close(fd);
}

TEST(coordination_file_of_another_user_is_refused)
{
    need_root();
    stand_in_shared_folder();
    for (int i = 0; i < SUFFIXES; i++) {
        make_store_with_job();
        for (int j = 0; j < SUFFIXES; j++)
            (void)unlink(beside(suffixes[j]));
        planted = beside(suffixes[i]);
        as_user(STRANGER, plant);
        expect_refused(planted, "belongs to user 20002");
        EXPECT_EQ(unlink(planted), 0);
        make_store_with_job();
        EXPECT_EQ(unlink("store.db"), 0);
        for (int j = 0; j < SUFFIXES; j++)
            (void)unlink(beside(suffixes[j]));
    }
}

TEST(log_of_another_user_is_not_read)
{
    need_root();
    stand_in_shared_folder();
    make_store_with_job();
    for (int i = 1; i < SUFFIXES; i++) {
        (void)unlink(beside("-wal"));
        (void)unlink(beside("-shm"));
        (void)unlink(beside("-journal"));
        planted = beside(suffixes[i]);
        as_user(STRANGER, plant);
        expect_open("store.db", (lh_open_opts){.read_only = true}, LH_EINVAL, planted);
        EXPECT_EQ(unlink(planted), 0);
    }
}

TEST(reader_ignores_a_coordination_file_of_another_user)
{
    need_root();
    struct lines lines;
    stand_in_shared_folder();
    make_store_with_job();
    EXPECT_EQ(unlink("store.db-lease"), 0);
    planted = "store.db-lease";
    as_user(STRANGER, plant);
    lh_store *reader = open_logged(&lines, (lh_open_opts){.read_only = true});
    EXPECT_CONTAINS(lines.text, "belongs to user 20002");
    EXPECT_EQ(counts_of(reader, "mail").pending, 1);
    lh_close(reader);
}

static void use_store(void)
{
    make_store_with_job();
}

TEST(root_leaves_the_files_of_a_store_to_its_owner)
{
    need_root();
    struct stat st;
    EXPECT_EQ(chmod(".", 0755), 0);
    EXPECT_EQ(mkdir("home", 0700), 0);
    EXPECT_EQ(chown("home", OWNER, OWNER), 0);
    EXPECT_EQ(chdir("home"), 0);
    as_user(OWNER, use_store);
    for (int i = 0; i < SUFFIXES; i++)
        (void)unlink(beside(suffixes[i]));
    make_store_with_job(); /* as root, who creates the files again */
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(stat(beside(suffixes[i]), &st), 0);
        EXPECT_EQ(st.st_uid, OWNER);
        EXPECT_EQ(st.st_gid, OWNER);
    }
    as_user(OWNER, use_store);
    lh_store *store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 3);
    lh_close(store);
}

/* ---- the permissions of a file ---- */

TEST(coordination_file_that_more_users_may_write_than_the_database_is_refused)
{
    make_store_with_job();
    for (int i = 0; i < 3; i++) {
        const char *file = beside(suffixes[i]);
        EXPECT_EQ(chmod(file, 0660), 0);
        expect_refused(file, "by more users than the database (mode 0660");
        EXPECT_EQ(chmod(file, 0602), 0);
        expect_refused(file, "by more users than the database (mode 0602");
        EXPECT_EQ(chmod(file, 0600), 0);
    }
    EXPECT_EQ(chmod("store.db", 0660), 0);
    EXPECT_EQ(chmod("store.db-wal", 0660), 0);
    make_store_with_job();
}

TEST(coordination_file_of_another_group_is_refused_if_the_group_may_write)
{
    need_root();
    make_store_with_job();
    EXPECT_EQ(chmod("store.db", 0660), 0);
    EXPECT_EQ(chmod("store.db-wal", 0660), 0);
    EXPECT_EQ(chown("store.db-wal", (uid_t)-1, STRANGER), 0);
    expect_refused("store.db-wal", "group 20002");
}

TEST(group_that_may_write_the_database_can_share_the_store)
{
    need_root();
    EXPECT_EQ(chmod(".", 0755), 0);
    EXPECT_EQ(mkdir("shared", 0700), 0);
    EXPECT_EQ(chown("shared", OWNER, GROUP), 0);
    EXPECT_EQ(chmod("shared", 02770), 0);
    EXPECT_EQ(chdir("shared"), 0);
    as_user(OWNER, use_store);
    for (int i = -1; i < 3; i++)
        EXPECT_EQ(chmod(beside(i < 0 ? "" : suffixes[i]), 0660), 0);
    as_user(MEMBER, use_store);
    as_user(OWNER, use_store);
    /* New files of the owner get the group, too. */
    EXPECT_EQ(unlink("store.db-lease"), 0);
    as_user(OWNER, use_store);
    as_user(MEMBER, use_store);
    lh_store *store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 5);
    lh_close(store);
}

static void try_to_lock(void)
{
    EXPECT(open("store.db-lease", O_RDONLY) < 0);
    EXPECT_EQ(errno, EACCES);
}

TEST(reader_of_the_database_cannot_lock_its_coordination_file)
{
    need_root();
    stand_in_shared_folder();
    file_write("store.db", "", 0);
    EXPECT_EQ(chmod("store.db", 0644), 0);
    make_store_with_job();
    as_user(STRANGER, try_to_lock);
    /* The same if somebody has widened the permissions since. */
    EXPECT_EQ(chmod("store.db-lease", 0644), 0);
    make_store_with_job();
    as_user(STRANGER, try_to_lock);
}

/* ---- the type of a file ---- */

TEST(coordination_file_that_is_no_plain_file_is_refused_at_once)
{
    make_store_with_job();
    for (int i = 0; i < SUFFIXES; i++) {
        const char *file = beside(suffixes[i]);
        (void)unlink(file);
        EXPECT_EQ(mkfifo(file, 0600), 0);
        expect_refused(file, "not a regular file");
        EXPECT_EQ(unlink(file), 0);
        file_write("elsewhere", "", 0);
        EXPECT_EQ(symlink("elsewhere", file), 0);
        lh_store *store = NULL;
        EXPECT(lh_open("store.db", NULL, &store) < 0);
        EXPECT_CONTAINS(lh_errmsg(store), file);
        lh_close(store);
        EXPECT_EQ(file_size("elsewhere"), 0);
        EXPECT_EQ(unlink(file), 0);
        EXPECT_EQ(link("elsewhere", file), 0);
        expect_refused(file, "has 2 names");
        EXPECT_EQ(unlink(file), 0);
    }
    make_store_with_job();
}

/* ---- free names ---- */

static void try_to_plant(void)
{
    for (int i = 0; i < SUFFIXES; i++) {
        EXPECT(open(beside(suffixes[i]), O_RDWR | O_CREAT, 0666) < 0);
        EXPECT(unlink(beside(suffixes[i])) != 0);
    }
}

TEST(open_store_takes_all_names_in_a_shared_folder)
{
    need_root();
    stand_in_shared_folder();
    for (int round = 0; round < 2; round++) {
        make_store_with_job();
        as_user(STRANGER, try_to_plant); /* and after the last close */
        lh_store *store = store_new();
        as_user(STRANGER, try_to_plant);
        (void)add(store, "mail", "y");
        store_check(store);
        lh_close(store);
    }
    EXPECT_EQ(file_size("store.db-journal"), 0);
}

TEST(store_in_a_folder_of_its_own_has_no_more_files_than_before)
{
    make_store_with_job();
    EXPECT(!file_exists("store.db-journal"));
}

/* ---- backup, restore, repair ---- */

static char new_name[128];

static void find_new(void)
{
    struct run found = run(NULL, (const char *const[]){"sh", "-c", "ls store.db.replaced-*", NULL});
    EXPECT_EQ(found.code, 0);
    found.out[strcspn(found.out, "\n")] = '\0';
    (void)snprintf(new_name, sizeof new_name, "%s-new", found.out);
    run_clear(&found);
}

TEST(planted_file_does_not_take_the_place_of_the_store)
{
    need_root();
    stand_in_shared_folder();
    make_store_with_job();
    lh_store *store = store_new();
    EXPECT_OK(lh_backup(store, "copy.db", NULL));
    lh_close(store);
    pid_t pid = test_fork();
    if (pid == 0) {
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "swap:renamed");
        (void)lh_restore("store.db", "copy.db", NULL, NULL, 0, NULL, 0);
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).sig, SIGKILL);
    /* Only the note of the replacement is left to clear: a file under this name would be put in
     * place. */
    find_new();
    planted = new_name;
    as_user(STRANGER, plant);
    expect_open("store.db", (lh_open_opts){0}, LH_EINVAL, "belongs to user 20002");
    EXPECT_EQ(unlink(new_name), 0);
    store = store_new();
    EXPECT_EQ(counts_of(store, "mail").pending, 1);
    lh_close(store);
}

TEST(restore_refuses_files_that_were_planted_beside_the_copy_or_the_store)
{
    need_root();
    stand_in_shared_folder();
    make_store_with_job();
    lh_store *store = store_new();
    EXPECT_OK(lh_backup(store, "copy.db", NULL));
    lh_close(store);
    char why[512];
    planted = "copy.db-journal";
    as_user(STRANGER, plant);
    EXPECT_STATUS(lh_restore("store.db", "copy.db", NULL, NULL, 0, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "copy.db-journal");
    EXPECT_EQ(unlink(planted), 0);
    planted = "store.db-wal";
    EXPECT_EQ(unlink(planted), 0);
    as_user(STRANGER, plant);
    EXPECT_STATUS(lh_restore("store.db", "copy.db", NULL, NULL, 0, why, sizeof why), LH_EINVAL);
    EXPECT_CONTAINS(why, "store.db-wal");
    EXPECT_EQ(unlink(planted), 0);
    EXPECT_OK(lh_restore("store.db", "copy.db", NULL, NULL, 0, why, sizeof why));
    make_store_with_job();
    /* Names that were taken for the files of the restore are free again. */
    struct run left =
        run(NULL, (const char *const[]){"sh", "-c", "ls | grep -c 'repair\\|-new'", NULL});
    EXPECT_STR(left.out, "0\n");
    run_clear(&left);
}

static void try_to_enter(void)
{
    struct run done = run(NULL, (const char *const[]){"sh", "-c",
                                                      "for f in *.partial-*; do "
                                                      "touch $f/other 2>/dev/null && exit 1; "
                                                      "rmdir $f 2>/dev/null && exit 1; done; true",
                                                      NULL});
    EXPECT_EQ(done.code, 0);
    run_clear(&done);
}

TEST(backup_is_made_where_nobody_else_can_put_a_journal_beside_it)
{
    need_root();
    stand_in_shared_folder();
    make_store_with_job();
    pid_t pid = test_fork();
    if (pid == 0) {
        lh_store *store = store_new();
        (void)snprintf(lhi_control()->kill_at, sizeof lhi_control()->kill_at, "backup:copied");
        (void)lh_backup(store, "copy.db", NULL);
        test_child_done();
    }
    EXPECT_EQ(test_wait(pid).sig, SIGKILL);
    as_user(STRANGER, try_to_enter);
}

/* ---- the config file ---- */

static void expect_config(const char *const words[], int code, const char *err)
{
    struct run done = run(NULL, words);
    EXPECT_EQ(done.code, code);
    EXPECT_CONTAINS(done.err, err);
    run_clear(&done);
}

TEST(config_file_of_another_user_in_a_shared_folder_is_refused_unless_it_is_named)
{
    need_root();
    const char *program = getenv("TEST_LEASEHOLD");
    EXPECT(program != NULL);
    const char *const found[] = {program, "enqueue", "mail", "x", NULL};
    const char *const named[] = {program, "--config", "leasehold.yaml", "enqueue", "mail",
                                 "x",     NULL};
    stand_in_shared_folder();
    file_write("leasehold.yaml", "store: theirs.db\n", 17);
    EXPECT_EQ(chown("leasehold.yaml", STRANGER, STRANGER), 0);
    expect_config(found, 2, "belongs to user 20002");
    EXPECT(!file_exists("theirs.db"));
    expect_config(named, 0, "");
    EXPECT_EQ(chown("leasehold.yaml", 0, 0), 0);
    expect_config(found, 0, "");
    /* In a folder that belongs to another user, root works for that user. */
    EXPECT_EQ(chown("leasehold.yaml", OWNER, OWNER), 0);
    EXPECT_EQ(chmod(".", 0755), 0);
    expect_config(found, 0, "");
}

/* ---- the database itself ---- */

TEST(store_of_another_user_in_a_shared_folder_is_refused_unless_it_is_named)
{
    need_root();
    const char *program = getenv("TEST_LEASEHOLD");
    EXPECT(program != NULL);
    const char *const found[] = {program, "enqueue", "mail", "x", NULL};
    const char *const read[] = {program, "list", NULL};
    const char *const named[] = {program, "--store", "leasehold.db", "enqueue", "mail", "x", NULL};
    stand_in_shared_folder();
    make_store_with_job();
    EXPECT_EQ(rename("store.db", "leasehold.db"), 0);
    EXPECT_EQ(chown("leasehold.db", STRANGER, STRANGER), 0);
    expect_config(found, 2, "store \"leasehold.db\" belongs to user 20002");
    expect_config(read, 2, "belongs to user 20002");
    EXPECT(!file_exists("leasehold.db-lease"));
    expect_config(named, 0, "belongs to user 20002, who can choose the jobs");
    /* In a folder that belongs to another user, root works for that user. */
    EXPECT_EQ(chmod(".", 0755), 0);
    expect_config(found, 0, "");
}

/* ---- locks of a user who may only read ---- */

static int holding[2];

/* Take the lock that every connection has on the database, but none on the index. */
static void hold_read_lock(void)
{
    char byte = 'h';
    struct flock lock = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0x40000002, .l_len = 510};
    int fd = open("store.db", O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    EXPECT_EQ(fcntl(fd, F_SETLK, &lock), 0);
    EXPECT_EQ(write(holding[1], &byte, 1), 1);
    (void)pause();
}

static pid_t start_as(uid_t uid, void (*doing)(void))
{
    char byte;
    EXPECT_EQ(pipe(holding), 0);
    pid_t pid = test_fork();
    if (pid == 0) {
        EXPECT_EQ(setgroups(0, NULL), 0);
        EXPECT_EQ(setresgid(uid, uid, uid), 0);
        EXPECT_EQ(setresuid(uid, uid, uid), 0);
        doing();
        test_child_done();
    }
    EXPECT_EQ(read(holding[0], &byte, 1), 1);
    return pid;
}

TEST(read_lock_of_a_user_who_may_only_read_does_not_keep_writers_out)
{
    need_root();
    EXPECT_EQ(chmod(".", 0755), 0);
    make_store_with_job();
    EXPECT_EQ(chmod("store.db", 0644), 0);
    pid_t reader = start_as(STRANGER, hold_read_lock);
    lh_store *store = store_open("store.db", (lh_open_opts){0});
    (void)add(store, "mail", "y");
    lh_close(store);
    /* A process that may write counts, whatever other locks exist. */
    pid_t root = start_as(0, hold_read_lock);
    expect_open("store.db", (lh_open_opts){0}, LH_ESTOPPED, "under another name");
    EXPECT_EQ(kill(reader, SIGKILL), 0);
    EXPECT_EQ(kill(root, SIGKILL), 0);
    (void)test_wait(reader);
    (void)test_wait(root);
}

TEST(check_warns_of_a_folder_where_others_may_replace_the_store)
{
    lh_findings *found = NULL;
    bool warned = false;
    EXPECT_EQ(mkdir("open", 0700), 0);
    EXPECT_EQ(chmod("open", 0777), 0);
    EXPECT_EQ(chdir("open"), 0);
    lh_store *store = store_new();
    EXPECT_OK(lh_check(store, NULL, &found));
    for (size_t i = 0; i < found->n; i++)
        warned = warned || strcmp(found->finding[i].what, "folder") == 0;
    EXPECT(warned);
    lh_findings_free(found);
    lh_close(store);
}
