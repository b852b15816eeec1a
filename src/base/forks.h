/*
 * forks.h: what a forked child must close before fork() returns in it.
 *
 * A lock on a file and a session with a server last as long as any copy of their descriptor, and a
 * forked child has a copy of every descriptor. Each entry of this list closes the child's copies.
 */
#ifndef LHI_FORKS_H
#define LHI_FORKS_H

struct lhi_fork_entry {
    /* Called in the child by its only thread. It must not allocate memory or take a lock, because a thread
     * that does not exist in the child may have held that lock. */
    void (*let_go)(void *arg);
    void *arg;
    struct lhi_fork_entry *prev, *next;
};

/* Between these two calls no thread of the process can fork. So a child either has a descriptor together
 * with its entry, or neither of them. */
void lhi_forks_hold(void);
void lhi_forks_resume(void);

/* Call both only between hold and resume. Removing an entry that is not in the list does nothing. A child
 * starts with an empty list. */
void lhi_forks_add(struct lhi_fork_entry *entry, void (*let_go)(void *arg), void *arg);
void lhi_forks_remove(struct lhi_fork_entry *entry);

#endif
