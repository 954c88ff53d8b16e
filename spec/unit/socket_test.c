/*
 * socket_test.c - addresses, and sockets that never block.
 */
#define _GNU_SOURCE
#include "io/socket.h"

#include "base/check.h"
#include "patience.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <troupe.h>
#include <unistd.h>

#include <cmocka.h>

/* -- helpers --------------------------------------------------------------- */

static struct tp_addr
ip(const char *host, uint16_t port)
{
    struct tp_addr a;
    assert_int_equal(tp_addr_ip(&a, host, strlen(host), port), 0);
    return a;
}

static int
try_ip(const char *host, size_t len)
{
    struct tp_addr a;
    return tp_addr_ip(&a, host, len, 1);
}

static void
check_text(const char *host, const char *want)
{
    char text[TP_ADDR_TEXT];
    struct tp_addr a = ip(host, 7);
    assert_int_equal(tp_addr_text(&a, text), strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(tp_addr_port(&a), 7);
}

static void
await(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    assert_int_equal(poll(&p, 1, (int)(PATIENCE_NS / MS)), 1);
}

static int
listen_at(const struct tp_addr *a)
{
    int fd;
    assert_int_equal(tp_socket_listen(a, 16, false, &fd), 0);
    return fd;
}

static struct tp_addr
name_of_socket(int fd)
{
    struct tp_addr a;
    assert_int_equal(tp_socket_sockname(fd, &a), 0);
    return a;
}

/* Two ends of a connection through listener. */
static void
connect_to(int listener, int *out_client, int *out_server)
{
    bool done;
    struct tp_addr a = name_of_socket(listener);
    assert_int_equal(tp_socket_connect(&a, out_client, &done), 0);
    await(listener, POLLIN);
    assert_int_equal(tp_socket_accept(listener, out_server), 0);
    await(*out_client, POLLOUT);
    assert_int_equal(tp_socket_connected(*out_client), 0);
}

static void
check_flags(int fd)
{
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

/* -- addresses ------------------------------------------------------------- */

static void
numeric_addresses_are_read_and_written(void **state)
{
    (void)state;
    check_text("127.0.0.1", "127.0.0.1");
    check_text("0.0.0.0", "0.0.0.0");
    check_text("::1", "::1");
    check_text("[::1]", "::1");
    check_text("::", "::");
    check_text("2001:db8::0:1", "2001:db8::1");
    check_text("::ffff:1.2.3.4", "::ffff:1.2.3.4");
    assert_int_equal(ip("[::1]", 1).at.in6.sin6_family, AF_INET6);
}

static void
a_scope_is_part_of_an_address(void **state)
{
    (void)state;
    check_text("fe80::1%lo", "fe80::1%lo");
    check_text("[fe80::1%1]", "fe80::1%lo");
    assert_int_equal(try_ip("fe80::1%nosuch", 14), TROUPE_EINVAL);
    assert_int_equal(try_ip("fe80::1%", 8), TROUPE_EINVAL);
    assert_int_equal(try_ip("fe80::1%0", 9), TROUPE_EINVAL);
}

static void
what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",      "localhost",  "1.2.3",    "1.2.3.4.5",   "1.2.3.256",
        "127.1", "0x7f.0.0.1", ":::",      "[127.0.0.1]", "[::1",
        "::1]",  "[]",         "1.2.3.4 ", " ::1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(try_ip(bad[i], strlen(bad[i])), TROUPE_EINVAL);
    }
    assert_int_equal(try_ip("1.2.3.4\0x", 9), TROUPE_EINVAL);
    char longest[TP_ADDR_TEXT + 2];
    memset(longest, '1', sizeof longest);
    assert_int_equal(try_ip(longest, sizeof longest), TROUPE_EINVAL);
}

static void
check_unix(const char *path, size_t len, const char *want)
{
    char text[TP_ADDR_TEXT];
    struct tp_addr a;
    assert_int_equal(tp_addr_unix(&a, path, len), 0);
    assert_int_equal(tp_addr_text(&a, text), strlen(want));
    assert_string_equal(text, want);
    assert_int_equal(tp_addr_port(&a), -1);
}

static void
unix_paths_and_abstract_names_are_read_and_written(void **state)
{
    (void)state;
    struct tp_addr a;
    check_unix("/tmp/x", 6, "/tmp/x");
    check_unix("@name", 5, "@name");
    check_unix("\0name", 5, "@name");
    assert_int_equal(tp_addr_unix(&a, "", 0), TROUPE_EINVAL);
    assert_int_equal(tp_addr_unix(&a, "a\0b", 3), TROUPE_EINVAL);
}

static void
a_unix_path_that_is_too_long_is_refused_not_cut(void **state)
{
    (void)state;
    struct tp_addr a;
    char path[200];
    memset(path, 'x', sizeof path);
    assert_int_equal(tp_addr_unix(&a, path, 107), 0);
    assert_int_equal(tp_addr_unix(&a, path, 108), TROUPE_ESYSTEM);
    assert_int_equal(errno, ENAMETOOLONG);
    path[0] = '@'; /* an abstract name has no end */
    assert_int_equal(tp_addr_unix(&a, path, 108), 0);
    assert_int_equal(tp_addr_unix(&a, path, 109), TROUPE_ESYSTEM);
    assert_int_equal(errno, ENAMETOOLONG);
}

/* -- connections ----------------------------------------------------------- */

static void
check_connection(const char *host)
{
    struct tp_addr any = ip(host, 0);
    int listener = listen_at(&any), client, server;
    struct tp_addr at = name_of_socket(listener), peer;
    assert_true(tp_addr_port(&at) > 0);
    connect_to(listener, &client, &server);
    check_flags(listener);
    check_flags(client);
    check_flags(server);
    assert_int_equal(tp_socket_peername(client, &peer), 0);
    assert_int_equal(tp_addr_port(&peer), tp_addr_port(&at));
    close(client);
    close(server);
    close(listener);
}

static void
connections_are_made_over_both_families(void **state)
{
    (void)state;
    check_connection("127.0.0.1");
    check_connection("::1");
}

static void
connections_are_made_by_path_and_by_abstract_name(void **state)
{
    (void)state;
    char dir[] = "/tmp/tp_socket_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        struct tp_addr a, name;
        int client, server;
        size_t n = (size_t)snprintf(path, sizeof path, "%s%s/s",
                                    i == 0 ? "" : "@", dir);
        assert_int_equal(tp_addr_unix(&a, path, n), 0);
        int listener = listen_at(&a);
        connect_to(listener, &client, &server);
        char text[TP_ADDR_TEXT];
        assert_int_equal(tp_socket_peername(client, &name), 0);
        tp_addr_text(&name, text);
        assert_string_equal(text, path);
        assert_int_equal(tp_socket_peername(server, &name), 0);
        assert_int_equal(tp_addr_text(&name, text), 0); /* it has no name */
        close(client);
        close(server);
        close(listener);
        unlink(path);
    }
    rmdir(dir);
}

static void
nobody_listens_is_refused(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int listener = listen_at(&any), fd;
    struct tp_addr a = name_of_socket(listener);
    bool done;
    close(listener);
    int rc = tp_socket_connect(&a, &fd, &done);
    if (rc == 0) { /* it may be told later */
        await(fd, POLLOUT);
        rc = tp_socket_connected(fd);
        close(fd);
    }
    assert_int_equal(rc, TROUPE_ESYSTEM);
    assert_int_equal(errno, ECONNREFUSED);
}

static void
a_socket_that_connects_to_itself_counts_as_refused(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, &any.at.any, any.size), 0);
    struct tp_addr own = name_of_socket(fd);
    assert_int_equal(connect(fd, &own.at.any, own.size), 0);
    assert_int_equal(tp_socket_connected(fd), TROUPE_ESYSTEM);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
}

static void
a_port_in_use_is_told(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int listener = listen_at(&any), fd;
    struct tp_addr a = name_of_socket(listener);
    assert_int_equal(tp_socket_listen(&a, 16, false, &fd), TROUPE_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    close(listener);
    listener = listen_at(&a); /* free again at once */
    close(listener);
}

static void
a_port_can_be_shared_when_all_say_so(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int first, second;
    assert_int_equal(tp_socket_listen(&any, 16, true, &first), 0);
    struct tp_addr a = name_of_socket(first);
    assert_int_equal(tp_socket_listen(&a, 16, true, &second), 0);
    close(first);
    close(second);
}

static void
accept_of_nothing_is_not_now(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int listener = listen_at(&any), fd;
    assert_int_equal(tp_socket_accept(listener, &fd), TROUPE_ESYSTEM);
    assert_int_equal(errno, EAGAIN);
    close(listener);
}

static void
accept_without_a_free_descriptor_keeps_the_connection(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int listener = listen_at(&any), client, server;
    struct tp_addr a = name_of_socket(listener);
    bool done;
    assert_int_equal(tp_socket_connect(&a, &client, &done), 0);
    await(listener, POLLIN);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &low);
    int rc = tp_socket_accept(listener, &server), err = errno;
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(rc, TROUPE_ESYSTEM);
    assert_int_equal(err, EMFILE);
    assert_int_equal(tp_socket_accept(listener, &server), 0);
    close(server);
    close(client);
    close(listener);
}

static void
a_full_unix_queue_is_not_now(void **state)
{
    (void)state;
    struct tp_addr a;
    int listener, clients[8], n = 0, rc;
    bool done;
    char path[64];
    size_t size = (size_t)snprintf(path, sizeof path, "@tp_socket_test_full_%d",
                                   (int)getpid());
    assert_int_equal(tp_addr_unix(&a, path, size), 0);
    assert_int_equal(tp_socket_listen(&a, 1, false, &listener), 0);
    while ((rc = tp_socket_connect(&a, &clients[n], &done)) == 0) {
        assert_true(++n < 8);
    }
    assert_int_equal(rc, TROUPE_ESYSTEM);
    assert_int_equal(errno, EAGAIN);
    while (n > 0) {
        close(clients[--n]);
    }
    close(listener);
}

/* -- options --------------------------------------------------------------- */

static int
nodelay_of(int fd)
{
    int on;
    socklen_t size = sizeof on;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
    return on;
}

static void
small_writes_are_not_held_back(void **state)
{
    (void)state;
    struct tp_addr any = ip("127.0.0.1", 0);
    int listener = listen_at(&any), client, server;
    connect_to(listener, &client, &server);
    assert_true(nodelay_of(client) && nodelay_of(server));
    assert_int_equal(tp_socket_nodelay(client, false), 0);
    assert_false(nodelay_of(client));
    close(client);
    close(server);
    close(listener);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(tp_socket_nodelay(pair[0], true), 0); /* no matter */
    close(pair[0]);
    close(pair[1]);
}

static void
datagram_sockets_are_bound(void **state)
{
    (void)state;
    struct tp_addr any = ip("::1", 0);
    int fd;
    assert_int_equal(tp_socket_datagram(&any, false, &fd), 0);
    check_flags(fd);
    struct tp_addr a = name_of_socket(fd);
    assert_true(tp_addr_port(&a) > 0);
    int other;
    assert_int_equal(tp_socket_datagram(&a, false, &other), TROUPE_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    close(fd);
}

static void
a_failed_call_leaves_no_descriptor(void **state)
{
    (void)state;
    int before = dup(0), after, fd;
    close(before);
    struct tp_addr far = ip("203.0.113.1", 0); /* not an address of this host */
    assert_int_equal(tp_socket_listen(&far, 1, false, &fd), TROUPE_ESYSTEM);
    assert_int_equal(errno, EADDRNOTAVAIL);
    assert_int_equal(tp_socket_datagram(&far, false, &fd), TROUPE_ESYSTEM);
    struct tp_addr none;
    bool done;
    assert_int_equal(tp_addr_unix(&none, "/nonexistent/s", 14), 0);
    assert_int_equal(tp_socket_connect(&none, &fd, &done), TROUPE_ESYSTEM);
    assert_int_equal(errno, ENOENT);
    after = dup(0);
    assert_int_equal(after, before);
    close(after);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numeric_addresses_are_read_and_written),
        cmocka_unit_test(a_scope_is_part_of_an_address),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(unix_paths_and_abstract_names_are_read_and_written),
        cmocka_unit_test(a_unix_path_that_is_too_long_is_refused_not_cut),
        cmocka_unit_test(connections_are_made_over_both_families),
        cmocka_unit_test(connections_are_made_by_path_and_by_abstract_name),
        cmocka_unit_test(nobody_listens_is_refused),
        cmocka_unit_test(a_socket_that_connects_to_itself_counts_as_refused),
        cmocka_unit_test(a_port_in_use_is_told),
        cmocka_unit_test(a_port_can_be_shared_when_all_say_so),
        cmocka_unit_test(accept_of_nothing_is_not_now),
        cmocka_unit_test(accept_without_a_free_descriptor_keeps_the_connection),
        cmocka_unit_test(a_full_unix_queue_is_not_now),
        cmocka_unit_test(small_writes_are_not_held_back),
        cmocka_unit_test(datagram_sockets_are_bound),
        cmocka_unit_test(a_failed_call_leaves_no_descriptor),
    };
    return cmocka_run_group_tests_name("socket", tests, NULL, NULL);
}
