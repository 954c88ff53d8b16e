%% bench.erl - the workloads of spec/bench, written for Erlang.
%%
%% erl +S N:N -noshell -pa build/peers -s bench main -extra [names...]
%%
%% The rule is that of spec/bench/measure.lua: rounds are doubled until one
%% run takes 0.1 s (warm-up), then three runs of about 0.4 s, then the median.
-module(bench).
-export([main/0]).
-export([init/1, handle_call/3, handle_cast/2]). % the server of call

-define(RING, 1000).
-define(SENDERS, 8).
-define(WINDOW, 1000).   % messages a sender sends for each "go"
-define(BATCH, 100).     % processes alive at once in spawn_exit
-define(IDLE, 100000).

main() ->
    Names = case init:get_plain_arguments() of
        [] -> [atom_to_list(N) || {N, _} <- benches()];
        Given -> Given
    end,
    {_, Ref} = spawn_monitor(fun() ->
        [F() || {N, F} <- benches(), lists:member(atom_to_list(N), Names)]
    end),
    receive
        {'DOWN', Ref, _, _, normal} -> init:stop(0);
        {'DOWN', Ref, _, _, Reason} ->
            io:format(standard_error, "~p~n", [Reason]),
            init:stop(1)
    end.

benches() ->
    [{ping_pong, fun ping_pong/0}, {ring, fun ring/0}, {fan_in, fun fan_in/0},
     {call, fun call/0},
     {table20, fun table20/0}, {table20_binary_keys, fun table20_binary_keys/0},
     {spawn_exit, fun spawn_exit/0}, {idle_memory, fun idle_memory/0}].

%% -- Workloads ------------------------------------------------------------

ping_pong() ->
    Echo = start_echo(),
    report(ping_pong, rate(1, fun(N) -> ping(Echo, N) end), "round_trips/s").

ping(_, 0) -> ok;
ping(Echo, N) ->
    Echo ! N,
    receive _ -> ping(Echo, N - 1) end.

start_echo() ->
    Root = self(),
    spawn_link(fun() -> echo(Root) end).

echo(Root) ->
    receive M -> Root ! M, echo(Root) end.

ring() ->
    Root = self(),
    First = spawn_link(fun() -> receive {next, P} -> node(Root, P) end end),
    Last = lists:foldl(
        fun(_, Next) -> spawn_link(fun() -> node(Root, Next) end) end,
        First, lists:seq(2, ?RING)),
    First ! {next, Last},
    report(ring, rate(1, fun(N) -> First ! N, receive done -> ok end end),
           "hops/s").

node(Root, Next) ->
    receive
        0 -> Root ! done;
        Hops -> Next ! Hops - 1
    end,
    node(Root, Next).

fan_in() ->
    Root = self(),
    Senders = [spawn_link(fun() -> sender(Root) end)
               || _ <- lists:seq(1, ?SENDERS)],
    report(fan_in, rate(?SENDERS * ?WINDOW, fun(N) -> fan(Senders, N) end),
           "messages/s").

fan(_, 0) -> ok;
fan(Senders, N) ->
    [S ! ?WINDOW || S <- Senders],
    take(?SENDERS * ?WINDOW),
    fan(Senders, N - 1).

sender(Root) ->
    receive K -> send(Root, K), sender(Root) end.

send(_, 0) -> ok;
send(Root, K) -> Root ! K, send(Root, K - 1).

take(0) -> ok;
take(K) -> receive _ -> take(K - 1) end.

call() ->
    {ok, Server} = gen_server:start_link(?MODULE, [], []),
    report(call, rate(1, fun(N) -> calls(Server, N) end), "calls/s").

calls(_, 0) -> ok;
calls(Server, N) ->
    N = gen_server:call(Server, N),
    calls(Server, N - 1).

init([]) -> {ok, none}.
handle_call(Request, _From, State) -> {reply, Request, State}.
handle_cast(_, State) -> {noreply, State}.

%% Atoms are what an Erlang program would use for keys: they are not copied.
table20() ->
    trade_table(table20, table(fun(Key) -> Key end)).

table20_binary_keys() ->
    trade_table(table20_binary_keys, table(fun atom_to_binary/1)).

trade_table(Bench, Table) ->
    Echo = start_echo(),
    report(Bench, rate(1, fun(N) -> trade(Echo, Table, N) end),
           "round_trips/s").

trade(_, _, 0) -> ok;
trade(Echo, Table, N) ->
    Echo ! Table,
    receive _ -> trade(Echo, Table, N - 1) end.

%% Built at run time: a literal would be sent without being copied.
table(Key) ->
    Strings = [name, title, street, city, country, email, phone, state,
               currency, note],
    Numbers = [id, age, level, score, width, height, weight, price, balance],
    maps:from_list(
        [{Key(K), list_to_binary(["the ", atom_to_list(K)])} || K <- Strings]
        ++ [{Key(K), 1.5 * length(atom_to_list(K))} || K <- Numbers]
        ++ [{Key(tags), lists:seq(1, 5)}]).

spawn_exit() ->
    report(spawn_exit, rate(?BATCH, fun batches/1), "actors/s").

batches(0) -> ok;
batches(N) ->
    Started = [spawn_monitor(fun() -> ok end) || _ <- lists:seq(1, ?BATCH)],
    [receive {'DOWN', Ref, _, _, _} -> ok end || {_, Ref} <- Started],
    batches(N - 1).

idle_memory() ->
    Root = self(),
    erlang:garbage_collect(),
    Before = resident(),
    Pids = [spawn_link(fun() -> receive M -> Root ! M end end)
            || _ <- lists:seq(1, ?IDLE)],
    timer:sleep(200),
    erlang:garbage_collect(),
    Bytes = (resident() - Before) / ?IDLE,
    [P ! alive || P <- Pids],
    take(?IDLE),
    report(idle_memory, Bytes, "bytes").

%% -- Measuring ------------------------------------------------------------

%% Bytes of resident memory and of page tables.
resident() ->
    {ok, Status} = file:read_file("/proc/self/status"),
    lists:sum([kib(Status, Key) * 1024 || Key <- ["VmRSS", "VmPTE"]]).

kib(Status, Key) ->
    {match, [N]} = re:run(Status, Key ++ ":\\s+(\\d+)",
                          [{capture, all_but_first, list}]),
    list_to_integer(N).

rate(Block, Work) ->
    {N0, T0} = warm_up(Work, 1),
    N = ceil(N0 * 0.4 / T0),
    [_, Median, _] = lists:sort([time(Work, N) || _ <- [1, 2, 3]]),
    N * Block / Median.

warm_up(Work, N) ->
    case time(Work, N) of
        T when T < 0.1 -> warm_up(Work, N * 2);
        T -> {N, T}
    end.

time(Work, N) ->
    Start = erlang:monotonic_time(nanosecond),
    Work(N),
    (erlang:monotonic_time(nanosecond) - Start) / 1.0e9.

report(Bench, Value, Unit) ->
    io:format("{\"peer\":\"beam\",\"bench\":\"~s\",\"schedulers\":~b,"
              "\"value\":~b,\"unit\":\"~s\"}~n",
              [Bench, erlang:system_info(schedulers), round(Value), Unit]).
