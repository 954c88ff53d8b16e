%% echo.erl - a TCP echo server, one process per connection, {active, true}.
%%
%% erl +S N:N -noinput -pa build/peers -s echo main
%%
%% Prints its port and serves until it is killed.
-module(echo).
-export([main/0]).

main() ->
    {ok, Listener} = gen_tcp:listen(0, [
        binary, {active, true}, {ip, {127, 0, 0, 1}}, {nodelay, true},
        {backlog, 4096}]),
    {ok, Port} = inet:port(Listener),
    io:format("~b~n", [Port]),
    accept(Listener).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> echo(Socket) end),
    %% Passes on what has come already.
    ok = gen_tcp:controlling_process(Socket, Pid),
    accept(Listener).

echo(Socket) ->
    receive
        {tcp, Socket, Data} ->
            ok = gen_tcp:send(Socket, Data),
            echo(Socket);
        {tcp_closed, Socket} -> ok;
        {tcp_error, Socket, _} -> ok
    end.
