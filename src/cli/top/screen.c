/*
 * The terminal: reads keys and shows frames. This is the only file that uses ncurses. ncurses has
 * global state, and restores the terminal when a signal ends the program.
 */
#include "top.h"

#include <curses.h>
#include <poll.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

#include "base/clock.h"

enum { LOOK_UP_MS = 250 }; /* the longest delay until a signal is noticed */

/* ---- the terminal ---------------------------------------------------------------------------- */

/** Checks that the terminal can show a screen. 0, or the exit code with the reason printed. ncurses
 *  itself would end the program or print line after line. */
static int check_terminal(void)
{
    const char *name = getenv("TERM");
    char shown[128];
    bool able;
    int found = 0;

    value_quote(name != NULL ? name : "", shown, sizeof shown);
    if (name == NULL || setupterm(NULL, STDOUT_FILENO, &found) != OK)
        return cli_error(EXIT_FAILED,
                         "terminal %s (TERM) is not known here: use \"leasehold top --once\"",
                         shown);
    able = cursor_address != NULL && clear_screen != NULL;
    (void)del_curterm(cur_term);
    if (!able)
        return cli_error(EXIT_USAGE,
                         "terminal %s (TERM) cannot move its cursor: use \"leasehold top --once\", "
                         "\"leasehold status\" or \"leasehold events --follow\"",
                         shown);
    return 0;
}

static SCREEN *begin_screen(void)
{
    static const short colors[] = {COLOR_WHITE, COLOR_RED, COLOR_GREEN, COLOR_YELLOW, COLOR_CYAN};
    SCREEN *screen = newterm(NULL, stdout, stdin);

    if (screen == NULL)
        return NULL;
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(25);
    curs_set(0);
    if (text_colors(stdout) && has_colors() && start_color() == OK) {
        short back = use_default_colors() == OK ? -1 : COLOR_BLACK;
        for (short i = 1; i < (short)(sizeof colors / sizeof colors[0]); i++)
            init_pair(i, colors[i], back);
    }
    return screen;
}

static attr_t attributes(unsigned ink)
{
    attr_t attr = A_NORMAL;

    if (ink & INK_BOLD)
        attr |= A_BOLD;
    if (ink & INK_DIM)
        attr |= A_DIM;
    if (ink & INK_REVERSE)
        attr |= A_REVERSE;
    return attr;
}

/** After erase() every cell is blank, so a blank needs drawing only if it has a colour. */
static bool is_blank(const struct spot *spot)
{
    return spot->c == L' ' && (spot->ink & INK_REVERSE) == 0;
}

static void show_frame(const struct frame *frame)
{
    bool colors = text_colors(stdout) && has_colors();

    erase();
    for (int row = 0; row < frame->rows; row++)
        for (int col = 0; col < frame->cols; col++) {
            const struct spot *spot = frame_spot(frame, row, col);
            wchar_t text[2] = {spot->c, 0};
            short pair = colors ? (short)(spot->ink & INK_COLORS) : 0;
            cchar_t cell;
            if (spot->c != 0 && !is_blank(spot) &&
                setcchar(&cell, text, attributes(spot->ink), pair, NULL) == OK)
                mvadd_wch(row, col, &cell);
        }
    refresh();
}

static bool same_frame(const struct frame *a, const struct frame *b)
{
    return b->spot != NULL && a->rows == b->rows && a->cols == b->cols &&
           memcmp(a->spot, b->spot, (size_t)a->rows * (size_t)a->cols * sizeof *a->spot) == 0;
}

/** Draws only when the picture or the time of day (once a second) has changed. */
static void show(struct top *top, struct frame *shown)
{
    struct frame frame;

    frame_init(&frame, getmaxy(stdscr), getmaxx(stdscr), top->ascii);
    draw(&frame, &top->picture, &top->view);
    if (!same_frame(&frame, shown))
        show_frame(&frame);
    frame_clear(shown);
    *shown = frame;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void scroll_by(struct view *view, long by)
{
    if (by < 0 && view->first < (size_t)-by)
        view->first = 0;
    else
        view->first += (size_t)by; /* drawing limits it to the last job */
}

static void press(struct view *view, int key)
{
    long page = view->page > 1 ? (long)view->page - 1 : 1;

    switch (key) {
    case 'p':
    case ' ':
        view->paused = !view->paused;
        break;
    case '?':
    case 'h':
        view->help = !view->help;
        break;
    case 's':
        view->sort = (view->sort + 1) % SORTS;
        break;
    case KEY_UP:
        scroll_by(view, -1);
        break;
    case KEY_DOWN:
        scroll_by(view, 1);
        break;
    case KEY_PPAGE:
        scroll_by(view, -page);
        break;
    case KEY_NPAGE:
        scroll_by(view, page);
        break;
    case KEY_HOME:
        view->first = 0;
        break;
    case KEY_END:
        view->first = PICTURE_JOBS;
        break;
    default: /* also KEY_RESIZE: the screen is redrawn after every key */
        break;
    }
}

/** Handles the typed keys. False: quit. `*typed`: there were keys. */
static bool take_keys(struct view *view, bool *typed)
{
    int key;

    while ((key = getch()) != ERR) {
        if (key == 'q' || key == 'Q')
            return false;
        press(view, key);
        *typed = true;
    }
    return true;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/** Waits for a key, a signal or the time. False: the terminal is gone. */
static bool wait_for_key(int64_t ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    if (ms > LOOK_UP_MS)
        ms = LOOK_UP_MS;
    return poll(&in, 1, ms > 0 ? (int)ms : 0) <= 0 ||
           (in.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

/* Uses real time even if a test has stopped the clock: otherwise the screen would never refresh. */
static int64_t screen_ms(void)
{
    return lhi_mono_us() / 1000;
}

static void watch(struct top *top, struct frame *shown)
{
    int64_t next = 0;
    bool changed = true;

    while (!cli_interrupted()) {
        int64_t now = screen_ms();
        if (!top->view.paused && now >= next) {
            if (top_look(top) == LH_OK && top->until_empty && picture_empty(&top->picture))
                return;
            next = now + top->interval_ms;
            changed = true;
        }
        if (changed)
            show(top, shown);
        changed = false;
        if (!wait_for_key(top->view.paused ? LOOK_UP_MS : next - screen_ms()) ||
            !take_keys(&top->view, &changed))
            return;
    }
}

int top_screen(struct top *top)
{
    struct frame shown = {0};
    SCREEN *screen;
    int exit = check_terminal();

    if (exit != 0)
        return exit;
    (void)cli_cancel(); /* before ncurses, which keeps existing signal handlers */
    if ((screen = begin_screen()) == NULL)
        return cli_error(EXIT_FAILED, "could not use the terminal");
    top->view.keys = true;
    watch(top, &shown);
    endwin();
    delscreen(screen);
    frame_clear(&shown);
    return cli_interrupted() ? cli_interrupted_exit() : EXIT_DONE;
}
