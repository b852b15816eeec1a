/*
 * The config file as a whole: finding it, reading it, refusing what is no single YAML document.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_reader.h"

enum { MOST_BYTES = 1 << 20, MOST_DEPTH = 16 };

static bool read_document(struct reader *r)
{
    yaml_node_t *root = yaml_document_get_root_node(r->doc);

    if (root == NULL) /* empty, or only comments: nothing is set */
        return true;
    if (root->type != YAML_MAPPING_NODE) {
        struct buf words = {0};
        key_names(config_keys, &words);
        config_refuse(r, root, "the file holds %s: allowed: a mapping with the keys %s",
                      yaml_type_name(root), buf_str(&words));
        buf_clear(&words);
        return false;
    }
    return config_read_mapping(r, "", root, config_keys, NULL);
}

/* libyaml takes quadratic time for nested brackets, and parses the whole file before it returns
 * anything. A valid config file is never nested deeper than a list of mappings. */
static bool too_deep(const char *path, const struct buf *text)
{
    int depth = 0, deepest = 0;
    size_t line = 1;

    for (size_t i = 0; i < text->n && deepest <= MOST_DEPTH; i++) {
        char c = text->p[i];
        line += c == '\n';
        if (c == '[' || c == '{')
            deepest = ++depth > deepest ? depth : deepest;
        else if (c == ']' || c == '}')
            depth--;
    }
    if (deepest <= MOST_DEPTH)
        return false;
    cli_error(EXIT_USAGE, "%s:%zu: brackets are nested deeper than %d", path, line, MOST_DEPTH);
    return true;
}

static bool parse(struct config *config, const char *path, const struct buf *text)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    struct reader r = {.path = path, .doc = &doc, .config = config};
    bool ok = false;

    if (too_deep(path, text))
        return false;
    if (!yaml_parser_initialize(&parser)) {
        cli_error(EXIT_FAILED, "out of memory");
        return false;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text->n > 0 ? text->p : ""),
                                 text->n);
    if (yaml_parser_load(&parser, &doc)) {
        ok = read_document(&r);
        yaml_document_delete(&doc);
    }
    if (ok && yaml_parser_load(&parser, &doc)) {
        yaml_node_t *more = yaml_document_get_root_node(&doc);
        if (more != NULL)
            ok = config_refuse(&r, more, "a second document begins: allowed: one");
        yaml_document_delete(&doc);
    }
    if (parser.error != YAML_NO_ERROR) {
        ok = false;
        cli_error(EXIT_USAGE, "%s:%zu: not YAML: %s%s%s", path, parser.problem_mark.line + 1,
                  parser.problem ? parser.problem : "it cannot be read", parser.context ? " " : "",
                  parser.context ? parser.context : "");
    }
    yaml_parser_delete(&parser);
    return ok && config_has_no_duplicates(path, config);
}

/* Reads at most MOST_BYTES + 1 bytes from the descriptor, which does not block. NULL, or the
 * reason. */
static const char *read_all(int fd, struct buf *text, char *why, size_t len)
{
    char chunk[65536];
    struct stat status;

    if (fstat(fd, &status) != 0)
        return strerror_r(errno, why, len);
    if (S_ISDIR(status.st_mode))
        return "it is a directory";
    if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))
        return "it is a pipe or a socket: allowed: a file";
    while (text->n <= MOST_BYTES) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0)
            return NULL;
        if (n < 0)
            return strerror_r(errno, why, len);
        buf_add(text, chunk, (size_t)n);
    }
    return "it is too large: allowed: at most 1 MiB";
}

bool config_is_planted(const struct stat *file)
{
    struct stat folder;

    return stat(".", &folder) == 0 && (folder.st_mode & S_IWOTH) && file->st_uid != geteuid() &&
           file->st_uid != 0 && file->st_uid != folder.st_uid;
}

/** The reason to refuse a config file that the user did not name; NULL: it is read. */
static const char *refuse_planted(int fd, char *room, size_t size)
{
    struct stat file;

    if (fstat(fd, &file) != 0 || !config_is_planted(&file))
        return NULL;
    snprintf(room, size,
             "it belongs to user %lu, who may have put it there: remove it, or name it with "
             "--config",
             (unsigned long)file.st_uid);
    return room;
}

bool config_load(struct config *config, const char *path, bool named)
{
    /* O_NONBLOCK: opening or reading a pipe without a writer must not block. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct buf text = {0};
    char room[160];

    config->integrity_check = true;
    config->interval_ms = 30000;
    config->multiplier = 3;
    config->detection_ms = 60000;
    if (fd < 0 && errno == ENOENT && !named)
        return true;
    const char *why = fd < 0 ? strerror_r(errno, room, sizeof room) : NULL;
    if (fd >= 0 && !named)
        why = refuse_planted(fd, room, sizeof room);
    if (why == NULL)
        why = read_all(fd, &text, room, sizeof room);
    bool ok = why == NULL;
    if (!ok)
        cli_error(EXIT_USAGE, "could not read the config file \"%s\": %s", path, why);
    config->path = path;
    ok = ok && parse(config, path, &text);
    if (fd >= 0)
        close(fd);
    buf_clear(&text);
    return ok;
}

void config_clear(struct config *config)
{
    lhi_arena_clear(&config->arena);
    *config = (struct config){0};
}
