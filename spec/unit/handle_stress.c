/*
 * handle_stress.c - handles in Lua that travel while actors are killed.
 *
 * The sanitizers see what is released twice or never; the script sees that
 * every channel ends. TROUPE_SEED=n repeats a run.
 */
#define _GNU_SOURCE
#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <troupe.h>
#include <unistd.h>

#include <cmocka.h>

static const char script[] =
    "local seed, rounds = ...\n"
    "local troupe = require 'troupe'\n"
    "math.randomseed(tonumber(seed))\n"
    "local random = math.random\n"
    /* Passes on whatever it gets, to one of its peers or into a channel. */
    "local function carrier(n, seed)\n"
    "  local random = math.random\n"
    "  math.randomseed(seed)\n"
    "  while true do\n"
    "    local m, from, kind = troupe.receive()\n"
    "    local to = 'carrier' .. random(n)\n"
    "    local way = random(9)\n"
    "    if kind == 'call' and way < 6 then from:reply(m)\n"
    "    elseif kind == 'call' then troupe.send(to, {from = from})\n"
    "    elseif type(m) ~= 'table' then\n"
    "    elseif m.from and way < 4 then m.from:reply({})\n"
    "    elseif way == 1 then\n"
    "      local tx, rx = troupe.channel(1)\n"
    "      tx:send(m)\n"
    "      troupe.send(to, {rx = rx, tx = random(2) == 1 and tx or nil})\n"
    "    elseif way == 2 then\n"
    "      if m.rx then troupe.send(to, (m.rx:recv(0))) end\n"
    "    elseif way == 3 then\n"
    "      local answer = troupe.call(to, m, 0.002)\n"
    "      if answer then troupe.send(to, answer) end\n"
    "    elseif way == 4 then troupe.send_after(0.0005, to, m)\n"
    "    elseif way == 5 then\n"
    "      troupe.spawn(function(x) troupe.send(to, x) end, m)\n"
    "    elseif way == 6 then\n"
    "      if m.mutex then m.mutex:with(function(v) return v + 1 end, 0) end\n"
    "      troupe.send(to, m)\n"
    "    elseif way == 7 then\n"
    "      troupe.receive_match({never = 1}, 0)\n"
    "      troupe.send('nobody', m)\n"
    "      troupe.send(to, m)\n"
    "    elseif way == 8 and m.tx then\n"
    "      m.tx:send({tx = m.tx, mutex = m.mutex}, 0)\n"
    "    elseif not troupe.send(to, m) then return end\n"
    "  end\n"
    "end\n"
    "local N = 6\n"
    "for round = 1, rounds do\n"
    "  local pids = {}\n"
    "  for i = 1, N do\n"
    "    pids[i] = troupe.spawn_opt({name = 'carrier' .. i}, carrier, N,\n"
    "                               random(1e9))\n"
    "  end\n"
    "  local mutex = troupe.mutex(0)\n"
    "  local watched = {}\n"
    "  for i = 1, 20 do\n"
    "    local tx, rx = troupe.channel()\n"
    "    local tx2, rx2 = troupe.channel(random(3))\n"
    "    tx2:send {tx = tx, mutex = mutex}\n"
    "    tx:close()\n"
    "    watched[i] = rx\n"
    "    troupe.send('carrier' .. random(N),\n"
    "      {rx = rx2, tx = random(2) == 1 and tx2 or nil, mutex = mutex})\n"
    "  end\n"
    "  for i = 1, 30 do\n"
    "    troupe.sleep(random() * 0.001)\n"
    "    local k = random(N)\n"
    "    pids[k]:kill()\n"
    "    troupe.join(pids[k])\n"
    "    pids[k] = troupe.spawn_opt({name = 'carrier' .. k}, carrier, N,\n"
    "                               random(1e9)) or pids[k]\n"
    "  end\n"
    "  for i = 1, N do pids[i]:kill() troupe.join(pids[i]) end\n"
    "  collectgarbage() collectgarbage()\n"
    /* Nobody is left who could hold a sender. */
    "  for i, rx in ipairs(watched) do\n"
    "    local v, err\n"
    "    repeat v, err = rx:recv(200) v = nil collectgarbage()\n"
    "    until err\n"
    "    assert(err == 'closed', err)\n"
    "  end\n"
    "end\n";

static void
every_channel_ends_whoever_is_killed(void **state)
{
    char path[] = "/tmp/troupe-handles-XXXXXX", seed[32];
    const char *argv[] = {seed, "4"};
    struct troupe_config config;
    struct troupe_result result;
    (void)state;
    const char *given = getenv("TROUPE_SEED");
    snprintf(seed, sizeof seed, "%llu",
             given != NULL ? strtoull(given, NULL, 10)
                           : tp_now_ns() % 1000000007ull);
    printf("TROUPE_SEED=%s\n", seed);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, script, sizeof script - 1),
                     (int)sizeof script - 1);
    close(fd);
    setenv("TROUPE_LOG", "off", 1);
    for (unsigned n = 1; n <= 2; n++) {
        troupe_config_init(&config);
        config.schedulers = n;
        int rc = troupe_run_file(&config, path, 2, argv, &result);
        if (rc != 0) {
            print_message("%s\n", result.error == NULL ? "" : result.error);
        }
        assert_int_equal(rc, 0);
        troupe_result_fini(&result);
    }
    unlink(path);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_channel_ends_whoever_is_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
