/*
 * Functions that do not get in. The build includes this file before every source below src/, so a
 * banned name is an error where it is written, not a finding in review.
 *
 * A poisoned name may not appear even in a declaration. The headers that declare these names
 * therefore come first; headers included later find them already read.
 */
#ifndef LHI_BANNED_H
#define LHI_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

/* Fortified builds of clang have macros of these names, and only what is no macro can be poisoned. */
#undef sprintf
#undef vsprintf

/* No bound on what is written: snprintf, memcpy with a known length. */
#pragma GCC poison strcpy strcat stpcpy sprintf vsprintf gets getwd wcscpy wcscat

/* A bound, but the result may lack its end or be padded to the full size: snprintf. */
#pragma GCC poison strncpy strncat stpncpy

/* One buffer or state for the whole process: strtok_r, gmtime_r, and for words about errno
 * strerror_r. */
#pragma GCC poison strtok gmtime localtime ctime asctime ctime_r asctime_r

/* Cannot tell a number from none, or undefined when it does not fit: strtoll with its end. */
#pragma GCC poison atoi atol atoll atof

/* Predictable, or seeded for the whole process: getrandom. */
#pragma GCC poison rand srand rand_r random srandom drand48 lrand48 mrand48 srand48

/* A name that another process may take before it is opened: mkstemp, mkdtemp. */
#pragma GCC poison tmpnam tempnam mktemp

/* Change or start things behind the back of the program that embeds us: ppoll, posix_spawn. */
#pragma GCC poison system popen alarm ualarm usleep bcopy bzero bcmp

#endif
