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

# Everything of ours sees src/ and include/, has warnings as errors, and throws nothing.
add_library(pawl_flags INTERFACE)
target_include_directories(pawl_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(pawl_flags INTERFACE -Wall -Wextra -Wpedantic -Wno-unused-parameter -fvisibility=hidden -pthread)
if(PAWL_WERROR)
  target_compile_options(pawl_flags INTERFACE -Werror)
endif()
target_link_libraries(pawl_flags INTERFACE Threads::Threads)
if(PAWL_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # compiles in 60 % of the time, finds the same
  add_compile_options(-fsanitize=${PAWL_SANITIZE} -fno-omit-frame-pointer)
  if(PAWL_SANITIZE MATCHES undefined)  # these double the time to compile, and a null pointer ends a test anyway
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
  add_link_options(-fsanitize=${PAWL_SANITIZE})
endif()
if(PAWL_FUZZ)  # every library is instrumented; only a fuzzer itself gets the main function
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function,vptr
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)  # those two want C++ symbols in libpawl.so
  add_link_options(-fsanitize=address,undefined)
endif()

# The headers that nearly every file reads, compiled once: a third of the time to compile a file. A file still
# includes what it uses: the presets dev and fuzz compile without.
option(PAWL_PRECOMPILE "compile the standard library's headers once" ON)
if(PAWL_PRECOMPILE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache's wish, too
  endif()
  set(standard <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional>
               <span> <string> <string_view> <thread> <unordered_map> <unordered_set> <variant> <vector>)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/nothing.cc CONTENT "int main() {}\n")
  add_library(pawl_headers OBJECT ${CMAKE_BINARY_DIR}/precompiled/nothing.cc)
  target_compile_options(pawl_headers PRIVATE -fno-exceptions)
  target_link_libraries(pawl_headers PRIVATE pawl_flags)
  target_precompile_headers(pawl_headers PRIVATE ${standard} "${PROJECT_SOURCE_DIR}/src/base/result.h")
  add_executable(pawl_test_headers ${CMAKE_BINARY_DIR}/precompiled/nothing.cc)
  target_link_libraries(pawl_test_headers PRIVATE pawl_flags GTest::gtest)
  target_precompile_headers(pawl_test_headers PRIVATE ${standard} <fstream> <random> <sstream> <gtest/gtest.h>
                             <nlohmann/json.hpp>)
endif()

# pawl_library(NAME SOURCES a.cc ... USES base env ... TESTS a_test.cc ...)
# makes the static library pawl_NAME, and for each test file an executable of that name, run by ctest in the lane "unit".
function(pawl_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;TESTS;LIBRARIES" ${ARGN})
  set(target pawl_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    target_link_libraries(${target} PUBLIC pawl_flags ${ARG_LIBRARIES})
    target_compile_options(${target} PRIVATE -fno-exceptions)
    if(PAWL_PRECOMPILE)
      target_precompile_headers(${target} REUSE_FROM pawl_headers)
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
  foreach(test_file ${ARG_TESTS})
    get_filename_component(test_name ${test_file} NAME_WE)
    pawl_test(${test_name} ${test_file} USES ${name})
  endforeach()
endfunction()

# pawl_test(NAME file.cc USES folder ... [LABEL unit|process|long]): one gtest executable, one ctest entry.
# A folder that sets PAWL_ONE_THREAD starts no thread: the tree that looks for data races leaves its tests out.
function(pawl_test test_name test_file)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "USES;LIBRARIES" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${test_name} ${test_file})
  target_link_libraries(${test_name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main)
  if(PAWL_PRECOMPILE)
    target_precompile_headers(${test_name} REUSE_FROM pawl_test_headers)
  endif()
  foreach(used ${ARG_USES})
    target_link_libraries(${test_name} PRIVATE pawl_${used})
  endforeach()
  if(PAWL_ONE_THREAD AND PAWL_SANITIZE STREQUAL "thread")
    set_target_properties(${test_name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  add_test(NAME ${test_name} COMMAND ${test_name})
  set_tests_properties(${test_name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(NOT TARGET tests_${ARG_LABEL})  # tests_unit, ...: what one lane needs, without building the rest
    add_custom_target(tests_${ARG_LABEL})
  endif()
  add_dependencies(tests_${ARG_LABEL} ${test_name})
endfunction()
