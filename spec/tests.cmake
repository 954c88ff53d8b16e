# tests.cmake - every test and benchmark, one line each.
#
#   tp_test(<unit> [SOURCES f...] [LUA] [ARGS a...] [LABELS l...])
#       spec/unit/<unit>.c, cmocka, on the checked core; LUA: and the checked
#       bindings and libluajit. Label core, or bindings with LUA.
#   tp_runq_test(<unit> ...)   the same, once for each run queue, on core/base
#   tp_runq_model(<unit> ...)  spec/model/<unit>.c, once for each run queue
#   tp_spec(<file> [NAME n] [ENV v...])   one busted file, run by
#       luajit; NAME: the same once more, as this test
#   tp_bench(<name> [SOURCES f...] [LUA])   spec/bench/<name>.c to build/bench/
#   tp_runq_bench(<name>)           the same, once for each run queue
#   tp_script(<name> COMMAND c... [ENV v...] [LABELS l...])

find_library(CMOCKA_LIBRARY cmocka REQUIRED)
find_path(CMOCKA_INCLUDE_DIR cmocka.h REQUIRED)

# Stacks of actors confuse no detector, see core/ctx/fiber.c.
set(sanitizer_env
  ASAN_OPTIONS=detect_stack_use_after_return=0:abort_on_error=1
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
# Seconds after which a test counts as hanging, whatever it does. No test comes
# near it, also on a machine that is ten times slower and shared with others.
if(TROUPE_SANITIZE)
  set(time_limit 3600)
else()
  set(time_limit 1200)
endif()

function(tp_executable name)
  cmake_parse_arguments(T "LUA;UNCHECKED" "" "SOURCES" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/spec/unit)
  target_include_directories(${name} SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
  if(T_UNCHECKED)
    set(suffix "")
  else()
    set(suffix _checked)
  endif()
  if(T_LUA)
    target_link_libraries(${name} PRIVATE tp_bindings${suffix} PkgConfig::LUAJIT)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  else()
    target_link_libraries(${name} PRIVATE tp_core${suffix} m)
  endif()
endfunction()

function(tp_test unit)
  cmake_parse_arguments(T "LUA" "" "SOURCES;ARGS;LABELS" ${ARGN})
  if(T_LUA AND NOT TARGET tp_bindings_checked)
    return()
  endif()
  if(T_LUA)
    set(lua LUA)
    set(label bindings)
  else()
    set(lua "")
    set(label core)
  endif()
  list(TRANSFORM T_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
  tp_executable(${unit} ${lua}
    SOURCES ${PROJECT_SOURCE_DIR}/spec/unit/${unit}.c ${T_SOURCES})
  target_link_libraries(${unit} PRIVATE ${CMOCKA_LIBRARY})
  set_target_properties(${unit} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/unit)
  add_test(NAME ${unit} COMMAND ${unit} ${T_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${unit} PROPERTIES TIMEOUT ${time_limit}
    LABELS "${label};${T_LABELS}" ENVIRONMENT "${sanitizer_env}")
endfunction()

function(tp_runq_executable unit dir)
  foreach(runq IN LISTS TROUPE_RUNQS)
    set(name ${unit}_${runq})
    add_executable(${name} ${PROJECT_SOURCE_DIR}/${dir}/${unit}.c
      ${PROJECT_SOURCE_DIR}/core/sched/runq_${runq}.c)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/spec/unit)
  endforeach()
endfunction()

function(tp_runq_test unit)
  cmake_parse_arguments(T "" "" "ARGS;LABELS" ${ARGN})
  tp_runq_executable(${unit} spec/unit)
  foreach(runq IN LISTS TROUPE_RUNQS)
    set(name ${unit}_${runq})
    target_link_libraries(${name} PRIVATE tp_core_checked ${CMOCKA_LIBRARY})
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/unit)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${time_limit}
      LABELS "core;${T_LABELS}" ENVIRONMENT "${sanitizer_env}")
  endforeach()
endfunction()

# A model compiles one backend into itself, see spec/model/<unit>.c. It is one
# thread, so that TSan has nothing to see in it.
function(tp_runq_model unit)
  if(TROUPE_CORE_ONLY OR TROUPE_SANITIZE STREQUAL "thread")
    return()
  endif()
  cmake_parse_arguments(T "" "" "ARGS;LABELS" ${ARGN})
  foreach(runq IN LISTS TROUPE_RUNQS)
    set(name ${unit}_${runq})
    add_executable(${name} ${PROJECT_SOURCE_DIR}/spec/model/${unit}.c)
    target_compile_options(${name} PRIVATE -UTROUPE_MODEL)
    target_compile_definitions(${name}
      PRIVATE RUNQ_SOURCE="sched/runq_${runq}.c")
    target_link_libraries(${name} PRIVATE tp_core_checked)
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/model)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${time_limit}
      LABELS "core;model;${T_LABELS}" ENVIRONMENT "${sanitizer_env}")
  endforeach()
endfunction()

function(tp_bench name)
  if(TROUPE_SANITIZE OR TROUPE_CORE_ONLY)
    return()
  endif()
  cmake_parse_arguments(T "LUA" "" "SOURCES" ${ARGN})
  if(T_LUA)
    if(NOT TARGET tp_bindings)
      return()
    endif()
    set(lua LUA)
  else()
    set(lua "")
  endif()
  list(TRANSFORM T_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/)
  tp_executable(${name} UNCHECKED ${lua}
    SOURCES ${PROJECT_SOURCE_DIR}/spec/bench/${name}.c ${T_SOURCES})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

function(tp_runq_bench name)
  if(TROUPE_SANITIZE OR TROUPE_CORE_ONLY)
    return()
  endif()
  tp_runq_executable(${name} spec/bench)
  foreach(runq IN LISTS TROUPE_RUNQS)
    target_link_libraries(${name}_${runq} PRIVATE tp_core)
    set_target_properties(${name}_${runq} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  endforeach()
endfunction()

# What a luajit, a busted or a script needs to find this build.
set(lua_env
  "LUA_PATH=${CMAKE_BINARY_DIR}/lua/?.lua\\;${CMAKE_BINARY_DIR}/lua/?/init.lua\\;${PROJECT_SOURCE_DIR}/?.lua\\;\\;"
  "LUA_CPATH=${CMAKE_BINARY_DIR}/lua/?.so\\;\\;"
  "TROUPE_BUILD=${CMAKE_BINARY_DIR}"
  "TROUPE_SPEC_TRACE=1" # the output of a spec that hung names it
  "TROUPE_BIN=${CMAKE_BINARY_DIR}/troupe")

function(tp_spec file)
  cmake_parse_arguments(T "" "NAME" "LABELS;ENV" ${ARGN})
  # A luajit that is not instrumented cannot load an instrumented core.so.
  if(NOT TARGET troupe_module OR TROUPE_SANITIZE)
    return()
  endif()
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${file})
    message(FATAL_ERROR "tp_spec: no file ${file}")
  endif()
  get_filename_component(name ${file} NAME_WE)
  if(T_NAME)
    set(name ${T_NAME})
  endif()
  add_test(NAME ${name}
    COMMAND ${BUSTED} --lua=${LUAJIT_PROGRAM} ${file}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${time_limit}
    LABELS "lua;${T_LABELS}" ENVIRONMENT "${lua_env};${T_ENV}")
endfunction()

function(tp_script name)
  cmake_parse_arguments(T "" "" "LABELS;COMMAND;ENV" ${ARGN})
  add_test(NAME ${name} COMMAND ${T_COMMAND}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${time_limit}
    LABELS "${T_LABELS}" ENVIRONMENT "${T_ENV}")
endfunction()

# -------------------------------------------------------------- core units --

# The core needs nothing but libc: this fails to link where it does.
add_library(core_alone MODULE $<TARGET_OBJECTS:tp_core_checked>)
target_link_options(core_alone PRIVATE -Wl,--no-undefined ${sanitize})
target_link_libraries(core_alone PRIVATE Threads::Threads)
set_target_properties(core_alone PROPERTIES LINKER_LANGUAGE C)

tp_test(sys_test)
tp_test(errors_test)
tp_test(mutex_test)
tp_test(strmap_test)
tp_test(slab_test)
tp_test(stack_test)
tp_test(stack_smoke)
tp_test(fiber_test)
tp_test(fiber_smoke)
tp_test(message_test)
tp_test(slot_test)
tp_test(timer_test)
tp_test(idle_test)
tp_test(parker_test)
tp_test(mailbox_test)
tp_test(registry_test)
tp_test(registry_stress LABELS stress)
tp_test(group_test)
tp_test(link_test)
tp_test(pidset_test)
tp_test(call_test)
tp_test(call_stress LABELS stress)
tp_test(delay_test)
tp_test(channel_test)
tp_test(channel_stress LABELS stress)
tp_test(value_mutex_test)
tp_test(counter_test)
tp_test(select_test)
tp_test(reason_test)
tp_test(worker_test)
tp_test(blocking_test)
tp_test(actor_test)
tp_test(runtime_test)
tp_test(socket_test)
tp_test(stream_test)
tp_test(resolve_test)
tp_test(process_test)
tp_test(mailbox_stress LABELS stress)
tp_test(actor_stress LABELS stress)
tp_test(driver_test)
tp_test(driver_stress LABELS stress)
tp_test(blocking_stress LABELS stress)
# TSan keeps a signal back until the next call that it knows, and a loop that is
# to be cut short makes none.
if(NOT TROUPE_SANITIZE STREQUAL thread)
  tp_test(preempt_test)
endif()
tp_test(fault_test)
tp_test(load_test SOURCES spec/load/histogram.c spec/load/http.c spec/load/tape.c)
tp_runq_test(runq_test)
tp_runq_test(runq_stress LABELS stress)
tp_runq_model(runq_model)

# -------------------------------------------------------------- benchmarks --

tp_runq_bench(bench_runq)

if(TROUPE_CORE_ONLY)
  return()
endif()

find_program(LUAJIT_PROGRAM luajit REQUIRED)
find_program(BUSTED busted REQUIRED)

# ---------------------------------------------------------- load generator --

# A program of its own, which shares nothing with ours but flags.
pkg_check_modules(LIBUV IMPORTED_TARGET libuv)
if(LIBUV_FOUND)
  set(load_files
    main.c options.c client.c serve.c histogram.c http.c tape.c)
  list(TRANSFORM load_files PREPEND ${PROJECT_SOURCE_DIR}/spec/load/)
  add_executable(troupe_load ${load_files})
  target_link_libraries(troupe_load PRIVATE tp_flags PkgConfig::LIBUV m)
  set_target_properties(troupe_load PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/load)
  tp_script(troupe_load LABELS core COMMAND spec/load/load_test.sh
    ENV ${sanitizer_env} TROUPE_LOAD=${CMAKE_BINARY_DIR}/load/troupe_load)
endif()

# ---------------------------------------------------------- bindings units --

tp_bench(bench_fd_echo)
tp_bench(bench_codec LUA)
tp_test(arena_test LUA)
tp_test(arena_lua_test LUA)
tp_test(service_test LUA)
tp_test(vm_test LUA)
tp_test(handle_stress LUA LABELS stress)
tp_test(codec_test LUA)

if(TARGET troupe)
  # The command, so that sanitizer builds run it too.
  foreach(schedulers 2 4)
    tp_script(kills_${schedulers} LABELS bindings stress ENV ${sanitizer_env}
      COMMAND troupe run --schedulers ${schedulers} --slice-ms 0.1
      spec/stress/kills.lua 100)
  endforeach()
  if(TARGET troupe_load)
    tp_script(churn_stress LABELS bindings stress
      ENV ${lua_env} ${sanitizer_env}
      COMMAND ${LUAJIT_PROGRAM} spec/load/churn_stress.lua)
  endif()
endif()

# --------------------------------------------------------------- Lua specs --

tp_spec(spec/lua/codec_spec.lua)
tp_spec(spec/lua/registry_spec.lua)
tp_spec(spec/lua/pg_spec.lua)
tp_spec(spec/lua/errors_spec.lua)
tp_spec(spec/lua/arguments_spec.lua)
tp_spec(spec/lua/blocking_spec.lua)
tp_spec(spec/lua/timer_spec.lua)
tp_spec(spec/lua/timeout_spec.lua)
tp_spec(spec/lua/io_spec.lua)
tp_spec(spec/lua/spawn_spec.lua)
tp_spec(spec/lua/jit_spec.lua)
tp_spec(spec/lua/send_spec.lua)
tp_spec(spec/lua/receive_spec.lua)
tp_spec(spec/lua/memory_spec.lua)
tp_spec(spec/lua/preempt_spec.lua)
tp_spec(spec/lua/preempt_spec.lua NAME preempt_spec_hook
  ENV TROUPE_SPEC_PREEMPTION=hook)
tp_spec(spec/lua/hook_spec.lua)
tp_spec(spec/lua/overflow_spec.lua)
tp_spec(spec/lua/stress_spec.lua LABELS stress)
tp_spec(spec/lua/join_spec.lua)
tp_spec(spec/lua/link_spec.lua)
tp_spec(spec/lua/monitor_spec.lua)
tp_spec(spec/lua/exit_spec.lua)
tp_spec(spec/lua/call_spec.lua)
tp_spec(spec/lua/task_spec.lua)
tp_spec(spec/lua/finalizer_spec.lua)
tp_spec(spec/lua/signals_spec.lua)
tp_spec(spec/lua/opts_spec.lua)
tp_spec(spec/lua/gen_server_spec.lua)
tp_spec(spec/lua/gen_statem_spec.lua)
tp_spec(spec/lua/supervisor_spec.lua)
tp_spec(spec/lua/dynamic_supervisor_spec.lua)
tp_spec(spec/lua/channel_spec.lua)
tp_spec(spec/lua/mutex_spec.lua)
tp_spec(spec/lua/counter_spec.lua)
tp_spec(spec/lua/select_spec.lua)
tp_spec(spec/lua/run_spec.lua)
tp_spec(spec/lua/require_spec.lua)
tp_spec(spec/lua/libraries_spec.lua)
tp_spec(spec/lua/module_spec.lua)
tp_spec(spec/lua/log_spec.lua)
tp_spec(spec/lua/print_spec.lua)
tp_spec(spec/lua/command_spec.lua)
tp_spec(spec/lua/inspect_spec.lua)
tp_spec(spec/lua/http_example_spec.lua)
tp_spec(spec/lua/server_examples_spec.lua)
tp_spec(spec/lua/net_spec.lua)
tp_spec(spec/lua/net_read_spec.lua)
tp_spec(spec/lua/net_write_spec.lua)
tp_spec(spec/lua/net_move_spec.lua)
tp_spec(spec/lua/net_udp_spec.lua)
tp_spec(spec/lua/net_resolve_spec.lua)
add_library(slow_names MODULE spec/unit/slow_names.c)
target_link_libraries(slow_names PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(slow_names PROPERTIES PREFIX "" SUFFIX .so
  C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/unit)
tp_spec(spec/lua/net_limits_spec.lua)
tp_spec(spec/lua/net_stress_spec.lua LABELS stress)
tp_spec(spec/lua/blocking_pool_spec.lua)
tp_spec(spec/lua/blocking_pool_spec.lua NAME blocking_pool_spec_hook
  ENV TROUPE_SPEC_PREEMPTION=hook)
tp_spec(spec/lua/fs_spec.lua)
tp_spec(spec/lua/process_spec.lua)
tp_spec(spec/regress/2_memory_limit_crash_spec.lua)
tp_spec(spec/regress/2_finalizer_hot_spec.lua)
tp_spec(spec/regress/4_compiled_out_of_memory_spec.lua)
tp_spec(spec/regress/4_errors_in_compiled_code_spec.lua)
tp_spec(spec/regress/4_finalizer_error_spec.lua)
tp_spec(spec/regress/4_overflow_in_libc_spec.lua)

# ------------------------------------------------------- the tree as a whole --

tp_script(check_pairs LABELS lint COMMAND ${LUAJIT_PROGRAM} spec/lint/check_pairs.lua)
tp_script(check_layers LABELS lint COMMAND ${LUAJIT_PROGRAM} spec/lint/check_layers.lua)
tp_script(check_headers LABELS lint COMMAND ${LUAJIT_PROGRAM} spec/lint/check_headers.lua)
tp_script(check_api LABELS lint COMMAND ${LUAJIT_PROGRAM} spec/lint/check_api.lua)
tp_script(check_locks LABELS lint COMMAND ${LUAJIT_PROGRAM} spec/lint/check_locks.lua)

find_program(LDOC ldoc)
if(LDOC)
  tp_script(ldoc LABELS lint COMMAND spec/ldoc_test.sh)
endif()

if(TROUPE_SANITIZE)
  return()
endif()

# The core builds and passes its tests where there is no LuaJIT: pkg-config is
# blind here, and a core file that asked for lua.h would not compile.
tp_script(core_without_luajit LABELS build
  ENV PKG_CONFIG_LIBDIR=/nonexistent PKG_CONFIG_PATH=
    CMAKE_BUILD_PARALLEL_LEVEL=2
  COMMAND ${CMAKE_CTEST_COMMAND}
    --build-and-test ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/core_only
    --build-generator ${CMAKE_GENERATOR} --build-noclean
    --build-options -DTROUPE_CORE_ONLY=ON -DTROUPE_CHECKED=ON
      -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
    --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure -LE stress)
set_tests_properties(core_without_luajit PROPERTIES TIMEOUT 3600) # many tests

tp_script(smoke_aarch64 LABELS core COMMAND spec/aarch64_test.sh)
set_tests_properties(smoke_aarch64 PROPERTIES SKIP_RETURN_CODE 77)

# Each build option that cannot be is refused when it is configured.
tp_script(impossible_options LABELS build
  COMMAND spec/options_test.sh ${CMAKE_BINARY_DIR}/options)

if(TARGET troupe)
  # What the header of each example says, it prints; the demo counts rightly.
  tp_script(examples LABELS lua COMMAND spec/examples_test.sh)
  tp_script(wordcount LABELS lua COMMAND spec/wordcount_test.sh)
  set_tests_properties(examples wordcount PROPERTIES
    ENVIRONMENT "${lua_env};LUAJIT=${LUAJIT_PROGRAM}")

  tp_script(luarocks_install LABELS build
    COMMAND spec/install_test.sh)
  set_tests_properties(luarocks_install PROPERTIES TIMEOUT 3600) # a whole build
endif()
