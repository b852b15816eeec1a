/*
 * leasehold top: the command, its options, and opening the store for the screen.
 */
#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "top.h"

enum { ONCE, INTERVAL, UNTIL_EMPTY };

/* A short busy timeout: a screen that hangs looks dead, so it tries again at the next refresh. */
enum { BUSY_MS = 500 };

enum { INTERVAL_MS = 250, COLS = 100, COLS_LEAST = 20, SIZE_MOST = 10000 };

static const struct option options[] = {
    [ONCE] = {"once", 0, NULL, SPEC_FLAG, 0,
              "print once as plain text; needs no terminal (size: $COLUMNS and $LINES)"},
    [INTERVAL] = {"interval", 'i', "D", SPEC_DURATION(50, 3600000), 0,
                  "refresh interval, 50ms to 1h (default: 250ms)"},
    [UNTIL_EMPTY] = {"until-empty", 0, NULL, SPEC_FLAG, 0,
                     "quit when no job is scheduled, pending or running"},
    {.name = NULL},
};

int top_look(struct top *top)
{
    struct cli *cli = top->cli;
    int rc;

    if (cli->store == NULL) {
        lh_open_opts opts = cli_opts(cli, ACCESS_READ);
        opts.log = NULL; /* log lines would appear in the middle of the screen */
        opts.busy_ms = BUSY_MS;
        rc = lh_open(cli->url, &opts, &cli->store);
        if (rc != LH_OK)
            picture_trouble(&top->picture,
                            cli->store != NULL ? lh_errmsg(cli->store) : "out of memory");
    } else {
        rc = LH_OK;
    }
    if (rc == LH_OK)
        rc = picture_take(&top->picture, cli->store, false);
    /* Open the store again: this finds a file that was replaced or repaired. */
    if (rc != LH_OK && rc != LH_EBUSY) {
        lh_close(cli->store);
        cli->store = NULL;
    }
    return rc;
}

/** Reads a size from the environment; 0: not set. */
static int size_of(const char *name)
{
    static const struct value_spec sizes = SPEC_INT(1, SIZE_MOST);
    const char *text = getenv(name);
    struct value value = {0};
    char why[VALUE_WHY];

    return text != NULL && value_parse(&sizes, text, &value, why) ? (int)value.num : 0;
}

static int width_of_output(void)
{
    struct winsize size = {0};
    int cols = size_of("COLUMNS");

    if (cols == 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        cols = size.ws_col;
    return cols == 0 ? COLS : cols < COLS_LEAST ? COLS_LEAST : cols;
}

static int print_once(struct top *top)
{
    struct frame frame;
    int rows;
    int rc = picture_take(&top->picture, top->cli->store, top->cli->json);

    if (rc != LH_OK)
        return cli_failed(top->cli, rc);
    if (top->cli->json) {
        picture_json(&top->picture);
        return EXIT_DONE;
    }
    rows = size_of("LINES");
    frame_init(&frame, rows ? rows : draw_rows(&top->picture), width_of_output(), top->ascii);
    draw(&frame, &top->picture, &top->view);
    frame_print(&frame);
    frame_clear(&frame);
    return EXIT_DONE;
}

/** Refuses options that make no sense together, or without a terminal. 0, or the exit code. */
static int refuse(const struct cli *cli, const struct args *args)
{
    bool once = args->option[ONCE].given > 0;

    if (once && args->option[UNTIL_EMPTY].given)
        return usage_error(args->command, "--once and --until-empty exclude each other");
    if (once && args->option[INTERVAL].given)
        return usage_error(args->command, "--once and --interval exclude each other");
    if (cli->json && !once)
        return usage_error(args->command, "--json needs --once");
    if (!once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
        return cli_error(EXIT_USAGE,
                         "standard %s is not a terminal: use \"leasehold top --once\", \"leasehold "
                         "status\" or \"leasehold events --follow\"",
                         isatty(STDOUT_FILENO) ? "input" : "output");
    return 0;
}

static int run(struct cli *cli, const struct args *args)
{
    const struct value *opt = args->option;
    struct top top = {
        .cli = cli,
        .interval_ms = opt[INTERVAL].given ? opt[INTERVAL].num : INTERVAL_MS,
        .until_empty = opt[UNTIL_EMPTY].given > 0,
    };
    int exit = refuse(cli, args);

    if (exit != 0 || (exit = cli_open(cli, ACCESS_READ)) != 0)
        return exit;
    /* The locale says which characters the terminal can show, and how wide they are. */
    (void)setlocale(LC_CTYPE, "");
    top.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    if (opt[ONCE].given) {
        exit = print_once(&top);
    } else {
        lh_close(cli->store); /* opened only to report a problem before the screen starts */
        cli->store = NULL;
        exit = top_screen(&top);
    }
    picture_clear(&top.picture);
    return exit;
}

static const struct example examples[] = {
    {"leasehold top", "watch queues, workers, leases and recoveries"},
    {"leasehold top --once", "the same as plain text, once"},
    {"leasehold top --until-empty", "watch until all jobs are done"},
    {.line = NULL},
};

const struct command cmd_top = {
    .name = "top",
    .args = "[--once] [--interval D] [--until-empty]",
    .summary = "watch queues, workers, leases and recoveries live",
    .text =
        "Shows queues with their states and rates, workers with the age of their last heartbeat, "
        "running jobs with the rest of their lease as a bar, and recoveries and deaths as they "
        "happen. It never writes to the store. If the store cannot be read, the last picture "
        "stays with a message until it can be read again.\n\nKeys: q quits, p pauses and "
        "resumes, s sorts the jobs by id, lease, age or worker, arrows and PgUp, PgDn, Home, End "
        "scroll them, ? shows help. If NO_COLOR is set there are no colours; on a terminal "
        "without UTF-8 the bars are plain characters.\n\n--once prints the screen once as plain "
        "text, $COLUMNS wide (default: the terminal, else 100) and as long as needed, or $LINES; "
        "with --json as data.",
    .options = options,
    .examples = examples,
    .run = run,
};
