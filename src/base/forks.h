/* What a forked child must let go of before fork() returns in it.
 *
 * A lock on a file and a session with a server live as long as any copy of their descriptor, and a
 * forked child has a copy of every descriptor. Each entry of this list closes its copies there. */
#ifndef LHI_FORKS_H
#define LHI_FORKS_H

struct lhi_fork_entry {
    /* Called in the child by its only thread. It may not allocate memory or take a lock: a thread that
     * does not exist in the child may have held it. */
    void (*let_go)(void *arg);
    void *arg;
    struct lhi_fork_entry *prev, *next;
};

/* Between these two calls no thread of the process can fork, so that getting a descriptor and adding
 * its entry are one step for every child, and so are removing the entry and closing the descriptor. */
void lhi_forks_hold(void);
void lhi_forks_resume(void);

/* Both only between hold and resume. Removing an entry that is not in the list does nothing. A child
 * starts with an empty list. */
void lhi_forks_add(struct lhi_fork_entry *entry, void (*let_go)(void *arg), void *arg);
void lhi_forks_remove(struct lhi_fork_entry *entry);

#endif
