/*
 * slow_names.c - for LD_PRELOAD: names that begin with "hangs" are looked up for
 * TROUPE_SLOW_NAMES seconds, then unknown.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*getaddrinfo_fn)(const char *node, const char *service,
                              const struct addrinfo *hints,
                              struct addrinfo **out);

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
            struct addrinfo **out)
{
    const char *seconds = getenv("TROUPE_SLOW_NAMES");
    getaddrinfo_fn real;
    if (node != NULL && strncmp(node, "hangs", 5) == 0) {
        unsigned left = seconds == NULL ? 0 : (unsigned)atoi(seconds);
        while (left > 0) { /* signals cut it short */
            left = sleep(left);
        }
        return EAI_NONAME;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, out);
}
