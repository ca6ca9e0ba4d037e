# How every folder of pawl is built.
include_guard()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(CCACHE ccache)
if(CCACHE)
  # What ccache asks for where headers are precompiled (PAWL_PRECOMPILE below).
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

set(PAWL_SANITIZE "" CACHE STRING "address,undefined or thread")

find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
include(GoogleTest)
add_custom_target(tests_unit)

# Everything of ours sees src/ and include/, has warnings as errors, and throws nothing.
add_library(pawl_flags INTERFACE)
target_include_directories(pawl_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(pawl_flags INTERFACE -Wall -Wextra -Wpedantic -Wno-unused-parameter -fvisibility=hidden -pthread)
option(PAWL_WERROR "warnings are errors (all our presets say ON; a compiler that we don't test may know other warnings)" OFF)
if(PAWL_WERROR AND NOT PAWL_SANITIZE)  # whose code makes g++ warn of what isn't there; the other trees compile the same
  target_compile_options(pawl_flags INTERFACE -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # these guess from inlined code, and are wrong within std::string
    target_compile_options(pawl_flags INTERFACE -Wno-array-bounds -Wno-error=maybe-uninitialized -Wno-error=restrict
                           -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=free-nonheap-object)
  endif()
endif()
target_link_libraries(pawl_flags INTERFACE Threads::Threads)
if(PAWL_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # compiles in 60 % of the time, finds the same
  add_compile_options(-fsanitize=${PAWL_SANITIZE} -fno-omit-frame-pointer)
  if(PAWL_SANITIZE MATCHES undefined)
    # Each of these doubles the time to compile. A null pointer ends a test anyway; the fuzzers' tree checks alignment.
    add_compile_options(-fno-sanitize=null,object-size,vptr,alignment)
  endif()
  add_link_options(-fsanitize=${PAWL_SANITIZE})
endif()
if(PAWL_FUZZ)  # every library is instrumented; only a fuzzer itself gets the main function
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function,vptr
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)  # those two want C++ symbols in libpawl.so
  add_link_options(-fsanitize=address,undefined)
endif()

# Code that waits for people or for the network, not for the processor: -O1 compiles in 60 % of the time of -O2. Tests
# mostly compile gtest: -O0, and no checks of undefined behaviour within the tests themselves.
if(NOT PAWL_SANITIZE)
  set(PAWL_COLD_OPTIONS $<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endif()
set(PAWL_TEST_OPTIONS $<$<CONFIG:RelWithDebInfo>:-O0>)
if(PAWL_SANITIZE MATCHES undefined)
  list(APPEND PAWL_TEST_OPTIONS -fno-sanitize=undefined)
endif()

# The headers that nearly every file reads, compiled once: a third of the time to compile a file. A file still
# includes what it uses: the presets dev and fuzz compile without. Whoever reads a precompiled header is compiled with the
# same options as the header: at another -O, g++ 12 has crashed.
option(PAWL_PRECOMPILE "compile the standard library's headers once" ON)
if(PAWL_PRECOMPILE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache's wish, too
  endif()
  set(standard <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional>
               <span> <string> <string_view> <thread> <unordered_map> <unordered_set> <variant> <vector>)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/nothing.cc CONTENT "int main() {}\n")
  function(pawl_precompiled name options)
    target_compile_options(${name} PRIVATE ${options})
    target_link_libraries(${name} PRIVATE pawl_flags)
    target_precompile_headers(${name} PRIVATE ${standard} ${ARGN})
  endfunction()
  set(ours "${PROJECT_SOURCE_DIR}/src/base/result.h" "${PROJECT_SOURCE_DIR}/src/base/text.h")
  set(nothing ${CMAKE_BINARY_DIR}/precompiled/nothing.cc)
  add_library(pawl_headers OBJECT ${nothing})
  pawl_precompiled(pawl_headers "-fno-exceptions" ${ours})
  add_library(pawl_cold_headers OBJECT ${nothing})
  pawl_precompiled(pawl_cold_headers "-fno-exceptions;${PAWL_COLD_OPTIONS}" ${ours})
  add_executable(pawl_test_headers ${nothing})  # no library: -fPIE and -fPIC differ, too
  pawl_precompiled(pawl_test_headers "${PAWL_TEST_OPTIONS}" <fstream> <random> <sstream> <gtest/gtest.h> <nlohmann/json.hpp>)
  target_link_libraries(pawl_test_headers PRIVATE GTest::gtest)
endif()

# Rooms whose files mostly compile headers of others (gRPC, JSON, torch) are compiled as few large files: a third of the time.
# The presets dev and fuzz compile each file alone.
option(PAWL_UNITY "compile the rooms marked TOGETHER as few large files" ON)
function(pawl_together target batch)
  if(PAWL_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
endfunction()

# The file that declares a command line (CLI11): it throws, and runs once.
function(pawl_command_line file)
  set_source_files_properties(${file} PROPERTIES
    COMPILE_OPTIONS "-fexceptions;$<$<CONFIG:RelWithDebInfo>:-O0>"
    SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# pawl_library(NAME SOURCES a.cc ... USES base env ... TESTS a_test.cc ... [OPTIMIZED] [COLD] [TOGETHER files-at-once]
#              [TESTS_TOGETHER files-at-once])
# makes the static library pawl_NAME, and for each test file an executable of that name, run by ctest in the lane "unit".
function(pawl_library name)
  cmake_parse_arguments(ARG "COLD;OPTIMIZED" "TOGETHER;TESTS_TOGETHER" "SOURCES;USES;TESTS;LIBRARIES" ${ARGN})
  set(target pawl_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_link_libraries(${target} PUBLIC pawl_flags ${ARG_LIBRARIES})
    target_compile_options(${target} PRIVATE -fno-exceptions)
    if(ARG_COLD)
      target_compile_options(${target} PRIVATE ${PAWL_COLD_OPTIONS})
    endif()
    if(PAWL_PRECOMPILE AND ARG_COLD)
      target_precompile_headers(${target} REUSE_FROM pawl_cold_headers)
    elseif(PAWL_PRECOMPILE)
      target_precompile_headers(${target} REUSE_FROM pawl_headers)
    endif()
    if(ARG_TOGETHER)
      pawl_together(${target} ${ARG_TOGETHER})
    endif()
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE pawl_flags ${ARG_LIBRARIES})
    set(scope INTERFACE)
  endif()
  foreach(used ${ARG_USES})
    target_link_libraries(${target} ${scope} pawl_${used})
  endforeach()
  if(ARG_TESTS)
    set(optimized)
    if(ARG_OPTIMIZED)
      set(optimized OPTIMIZED)
    endif()
    set(together)
    if(ARG_TESTS_TOGETHER)
      set(together TOGETHER ${ARG_TESTS_TOGETHER})
    endif()
    pawl_tests(${ARG_TESTS} USES ${name} ${optimized} ${together})
  endif()
endfunction()

# pawl_tests(a_test.cc ... USES folder ... [LABEL unit|process|long] [TIMEOUT seconds] [DEFINITIONS x=y ...]
#            [DEPENDS target ...] [OPTIMIZED] [TOGETHER files-at-once])
# puts these files of gtest into the program ${PAWL_TEST_PROGRAM}, which several folders may share: one executable and one
# ctest entry each. A dozen programs link in a tenth of the time that one a file takes. OPTIMIZED: the program computes more
# than it compiles. TOGETHER: as few large files, in half of the time; then no two of them may use one name for their helpers.
# A folder that sets PAWL_ONE_THREAD starts no thread, and its tests give it none: the tree that looks for data races leaves
# its program out, since there is nothing to find and compiling it there costs minutes. All files of a program agree in it,
# and in the label. A room whose code shares memory with threads of its callers (env, base, snapshot) doesn't set it.
function(pawl_tests)
  cmake_parse_arguments(ARG "OPTIMIZED" "LABEL;TIMEOUT;TOGETHER" "USES;DEFINITIONS;DEPENDS" ${ARGN})
  set(program ${PAWL_TEST_PROGRAM})
  if(NOT program)
    message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}: say which program the tests belong to: set(PAWL_TEST_PROGRAM ...)")
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  set(one_thread ${PAWL_ONE_THREAD})
  if(NOT one_thread)
    set(one_thread OFF)
  endif()
  get_property(before GLOBAL PROPERTY PAWL_TESTS_${program}_KIND)
  set(kind "${ARG_LABEL};${one_thread}")
  if(before AND NOT before STREQUAL kind)
    message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}: ${program} has tests of other kinds: ${before}, not ${kind}")
  endif()
  set_property(GLOBAL PROPERTY PAWL_TESTS_${program}_KIND "${kind}")
  set_property(GLOBAL PROPERTY PAWL_TESTS_${program}_TIMEOUT ${ARG_TIMEOUT})
  if(ARG_OPTIMIZED)
    set_property(GLOBAL PROPERTY PAWL_TESTS_${program}_OPTIMIZED ON)
  endif()
  if(ARG_TOGETHER)
    set_property(GLOBAL PROPERTY PAWL_TESTS_${program}_TOGETHER ${ARG_TOGETHER})
  endif()
  list(TRANSFORM ARG_UNPARSED_ARGUMENTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_USES PREPEND pawl_)
  set_property(GLOBAL APPEND PROPERTY PAWL_TEST_PROGRAMS ${program})
  set_property(GLOBAL APPEND PROPERTY PAWL_TESTS_${program}_SOURCES ${ARG_UNPARSED_ARGUMENTS})
  set_property(GLOBAL APPEND PROPERTY PAWL_TESTS_${program}_LIBRARIES ${ARG_USES})
  set_property(GLOBAL APPEND PROPERTY PAWL_TESTS_${program}_DEFINITIONS ${ARG_DEFINITIONS})
  set_property(GLOBAL APPEND PROPERTY PAWL_TESTS_${program}_DEPENDS ${ARG_DEPENDS})
endfunction()

# Makes the programs of which pawl_tests() has told.
function(pawl_test_programs)
  find_package(nlohmann_json REQUIRED)         # goldens are read with it
  find_package(Python3 3.9 COMPONENTS Interpreter)  # what reads what we write
  get_property(programs GLOBAL PROPERTY PAWL_TEST_PROGRAMS)
  list(REMOVE_DUPLICATES programs)
  foreach(program ${programs})
    foreach(what KIND TIMEOUT SOURCES LIBRARIES DEFINITIONS DEPENDS)
      get_property(${what} GLOBAL PROPERTY PAWL_TESTS_${program}_${what})
    endforeach()
    list(GET KIND 0 label)
    list(GET KIND 1 one_thread)
    list(REMOVE_DUPLICATES LIBRARIES)
    add_executable(${program} ${SOURCES})
    target_link_libraries(${program} PRIVATE ${LIBRARIES} nlohmann_json::nlohmann_json GTest::gtest GTest::gtest_main)
    target_compile_definitions(${program} PRIVATE
      PAWL_CHECKOUT="${PROJECT_SOURCE_DIR}" PAWL_PYTHON3="${Python3_EXECUTABLE}" ${DEFINITIONS})
    foreach(needed ${DEPENDS})
      add_dependencies(${program} ${needed})
    endforeach()
    get_property(optimized GLOBAL PROPERTY PAWL_TESTS_${program}_OPTIMIZED)
    if(NOT optimized)
      target_compile_options(${program} PRIVATE ${PAWL_TEST_OPTIONS})
      if(PAWL_PRECOMPILE)
        target_precompile_headers(${program} REUSE_FROM pawl_test_headers)
      endif()
    endif()
    get_property(together GLOBAL PROPERTY PAWL_TESTS_${program}_TOGETHER)
    if(together)
      pawl_together(${program} ${together})
    endif()
    if(one_thread AND PAWL_SANITIZE STREQUAL "thread")
      set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
      continue()
    endif()
    add_test(NAME ${program} COMMAND ${program})
    set_tests_properties(${program} PROPERTIES LABELS ${label} TIMEOUT ${TIMEOUT})
    if(NOT TARGET tests_${label})  # tests_unit, ...: what one lane needs, without building the rest
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${program})
  endforeach()
endfunction()
