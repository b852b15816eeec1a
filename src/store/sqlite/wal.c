/*
 * Verifying the log by its own checksums.
 *
 * After a failed sync the kernel may have dropped what was written and left older bytes in its
 * place. SQLite finds frames through its index in shared memory and does not verify them again. So
 * we verify them before the log is moved into the database. The format is SQLite's, documented and
 * frozen: a header of 32 bytes, then frames of 24 bytes and a page, each with a running checksum.
 */
#include "store/sqlite/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { HEADER = 32, FRAME_HEADER = 24, MAX_PAGE = 65536 };

#define MAGIC_LITTLE 0x377f0682U
#define MAGIC_BIG 0x377f0683U

static uint32_t big32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t little32(const unsigned char *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static void add(uint32_t sum[2], const unsigned char *p, size_t len, bool big)
{
    for (size_t i = 0; i + 8 <= len; i += 8) {
        sum[0] += (big ? big32(p + i) : little32(p + i)) + sum[1];
        sum[1] += (big ? big32(p + i + 4) : little32(p + i + 4)) + sum[0];
    }
}

static bool read_at(int fd, void *buf, size_t len, off_t at)
{
    ssize_t n;
    do
        n = pread(fd, buf, len, at);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len;
}

static int64_t count_frames(int fd, unsigned char *frame)
{
    unsigned char header[HEADER];
    uint32_t sum[2] = {0, 0};
    int64_t n = 0;

    if (!read_at(fd, header, HEADER, 0))
        return 0;
    uint32_t magic = big32(header), page = big32(header + 8);
    bool big = magic == MAGIC_BIG;
    if ((!big && magic != MAGIC_LITTLE) || page < 512 || page > MAX_PAGE)
        return 0;
    add(sum, header, 24, big);
    if (big32(header + 24) != sum[0] || big32(header + 28) != sum[1])
        return 0;
    size_t size = FRAME_HEADER + page;
    while (read_at(fd, frame, size, HEADER + (off_t)n * (off_t)size)) {
        add(sum, frame, 8, big);
        add(sum, frame + FRAME_HEADER, page, big);
        /* Another salt or another checksum: the log ends here. */
        if (big32(frame + 8) != big32(header + 16) || big32(frame + 12) != big32(header + 20) ||
            big32(frame + 16) != sum[0] || big32(frame + 20) != sum[1])
            break;
        n++;
    }
    return n;
}

int sq_wal_valid_frames(const char *db_path, int64_t *frames, struct lhi_error *err)
{
    char path[4200];

    *frames = 0;
    lhi_format(path, sizeof path, "%s-wal", db_path);
    /* SQLite's locks are on the database and on the index, so closing the log drops none of
     * them. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? LH_OK
                               : lhi_fail_errno(err, errno, "could not read the log \"%s\"", path);
    unsigned char *frame = lhi_malloc(FRAME_HEADER + MAX_PAGE);
    if (frame != NULL)
        *frames = count_frames(fd, frame);
    lhi_free(frame);
    close(fd);
    return frame ? LH_OK : lhi_no_memory(err);
}
