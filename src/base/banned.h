/*
 * banned.h: functions that must not be used. The build includes this file before every source below
 * src/, so using one of these names is a compile error.
 *
 * A poisoned name may not appear even in a declaration, so the headers that declare these names are
 * included first.
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

/* In fortified builds with clang these are macros, and a macro cannot be poisoned. */
#undef sprintf
#undef vsprintf

/* These write without a bound. Use snprintf, or memcpy with a known length. */
#pragma GCC poison strcpy strcat stpcpy sprintf vsprintf gets getwd wcscpy wcscat

/* These may omit the final zero, or pad to the full size. Use snprintf. */
#pragma GCC poison strncpy strncat stpncpy

/* These use one buffer for the whole process. Use strtok_r, gmtime_r, strerror_r. */
#pragma GCC poison strtok gmtime localtime ctime asctime ctime_r asctime_r

/* These cannot report an invalid number. Use strtoll with its end pointer. */
#pragma GCC poison atoi atol atoll atof

/* These are predictable, or share one seed in the process. Use getrandom. */
#pragma GCC poison rand srand rand_r random srandom drand48 lrand48 mrand48 srand48

/* Another process may take the name before it is opened. Use mkstemp, mkdtemp. */
#pragma GCC poison tmpnam tempnam mktemp

/* These change signals or start processes of the program that embeds us. Use ppoll, posix_spawn. */
#pragma GCC poison system popen alarm ualarm usleep bcopy bzero bcmp

#endif
