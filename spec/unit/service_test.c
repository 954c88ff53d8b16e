/*
 * service_test.c - a C host that runs Lua files through troupe.h.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <troupe.h>
#include <unistd.h>

static char path[] = "/tmp/troupe-service-XXXXXX";

static int
write_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int
remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static int
run_text(const char *text, int argc, const char *const *argv,
         struct troupe_result *out)
{
    struct troupe_config config;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    troupe_config_init(&config);
    config.schedulers = 2;
    memset(out, 0, sizeof *out);
    int rc = troupe_run_file(&config, path, argc, argv, out);
    if (rc != 0) {
        print_message("%s\n", out->error == NULL ? "" : out->error);
    }
    return rc;
}

static void
a_good_script_returns_nothing_wrong(void **state)
{
    struct troupe_result r;
    (void)state;
    assert_int_equal(run_text("return 1", 0, NULL, &r), 0);
    assert_false(r.exited);
    assert_int_equal(r.exit_code, 0);
    assert_null(r.error);
    troupe_result_fini(&r);
}

static void
arguments_arrive(void **state)
{
    static const char *const argv[] = {"one", "two words"};
    struct troupe_result r;
    (void)state;
    int rc = run_text("local a, b = ... assert(a == 'one' and b == 'two words')"
                      "local t = require 'troupe'.args "
                      "assert(#t == 2 and t[2] == b)",
                      2, argv, &r);
    assert_null(r.error);
    assert_int_equal(rc, 0);
    troupe_result_fini(&r);
}

static void
an_error_comes_with_a_traceback(void **state)
{
    struct troupe_result r;
    (void)state;
    assert_int_equal(run_text("\nerror('went wrong')", 0, NULL, &r),
                     TROUPE_EFAILED);
    assert_int_equal(r.exit_code, 1);
    assert_non_null(strstr(r.error, ":2: went wrong"));
    assert_non_null(strstr(r.error, "stack traceback"));
    troupe_result_fini(&r);
}

static void
a_syntax_error_is_found_before_anything_runs(void **state)
{
    struct troupe_result r;
    (void)state;
    assert_int_equal(run_text("x = = 1", 0, NULL, &r), TROUPE_ESYNTAX);
    assert_non_null(strstr(r.error, ":1:"));
    troupe_result_fini(&r);
}

static void
a_missing_file_is_named(void **state)
{
    struct troupe_config config;
    struct troupe_result r;
    (void)state;
    troupe_config_init(&config);
    assert_int_equal(troupe_run_file(&config, "/nowhere/app.lua", 0, NULL, &r),
                     TROUPE_ENOTFOUND);
    assert_non_null(strstr(r.error, "/nowhere/app.lua"));
    troupe_result_fini(&r);
}

static void
os_exit_ends_the_run_not_the_host(void **state)
{
    struct troupe_result r;
    (void)state;
    int rc = run_text("local troupe = require 'troupe' "
                      "troupe.spawn(function() os.exit(7) end) "
                      "troupe.receive()",
                      0, NULL, &r);
    assert_int_equal(rc, 0);
    assert_true(r.exited);
    assert_int_equal(r.exit_code, 7);
    troupe_result_fini(&r);
}

static void
a_failed_run_is_followed_by_a_good_one(void **state)
{
    struct troupe_result r;
    for (int i = 0; i < 5; i++) {
        an_error_comes_with_a_traceback(state);
        assert_int_equal(run_text("return", 0, NULL, &r), 0);
        troupe_result_fini(&r);
    }
}

static void
bad_arguments_are_refused(void **state)
{
    struct troupe_config config;
    struct troupe_result r;
    (void)state;
    troupe_config_init(&config);
    assert_int_equal(troupe_run_file(NULL, path, 0, NULL, &r), TROUPE_EINVAL);
    assert_int_equal(troupe_run_file(&config, NULL, 0, NULL, &r),
                     TROUPE_EINVAL);
    config.size = 1;
    assert_int_equal(troupe_run_file(&config, path, 0, NULL, &r),
                     TROUPE_EINVAL);
    troupe_config_init(&config);
    config.schedulers = 65;
    assert_int_equal(run_text("return", 0, NULL, &r), 0);
    assert_int_equal(troupe_run_file(&config, path, 0, NULL, &r),
                     TROUPE_EINVAL);
}

static void
signal_handlers_and_masks_are_the_hosts_again(void **state)
{
    struct troupe_result r;
    struct sigaction before[2], after[2];
    sigset_t mask_before, mask_after;
    (void)state;
    sigaction(SIGURG, NULL, &before[0]);
    sigaction(SIGSEGV, NULL, &before[1]);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
    assert_int_equal(run_text("return", 0, NULL, &r), 0);
    troupe_result_fini(&r);
    sigaction(SIGURG, NULL, &after[0]);
    sigaction(SIGSEGV, NULL, &after[1]);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
    for (int i = 0; i < 2; i++) {
        assert_true(before[i].sa_handler == after[i].sa_handler);
    }
    for (int sig = 1; sig < 32; sig++) {
        assert_int_equal(sigismember(&mask_before, sig),
                         sigismember(&mask_after, sig));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_script_returns_nothing_wrong),
        cmocka_unit_test(arguments_arrive),
        cmocka_unit_test(an_error_comes_with_a_traceback),
        cmocka_unit_test(a_syntax_error_is_found_before_anything_runs),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(os_exit_ends_the_run_not_the_host),
        cmocka_unit_test(a_failed_run_is_followed_by_a_good_one),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(signal_handlers_and_masks_are_the_hosts_again),
    };
    return cmocka_run_group_tests(tests, write_file, remove_file);
}
