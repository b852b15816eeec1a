/* How much is raced. Under a sanitizer everything is ten times slower, and as much is learnt from
 * less. */
#ifndef SIZES_H
#define SIZES_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RACE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RACE_SANITIZED 1
#endif
#endif

#ifdef RACE_SANITIZED
enum { RACE_JOBS = 10000, RACE_SCALE = 1 };
#else
enum { RACE_JOBS = 100000, RACE_SCALE = 10 };
#endif

#endif
