# kv_library, kv_binary, kv_test, kv_bench: the only ways a target is made here.
# SRCS and HDRS are listed, never globbed; DEPS are explicit, so that the link graph is the include graph.

option(KVARVE_WERROR "Warnings are errors" ON)
set(KVARVE_SANITIZE "" CACHE STRING "Comma list for -fsanitize=, empty for none")
option(KVARVE_FUZZ "Link fuzz targets with libFuzzer (needs clang)" OFF)

add_library(kv_options INTERFACE)
target_include_directories(kv_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(kv_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                                            $<$<BOOL:${KVARVE_WERROR}>:-Werror>)
if(KVARVE_SANITIZE)
  # Instrumented standard headers (std::regex) look uninitialised to g++ 12.
  target_compile_options(kv_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_compile_options(-fsanitize=${KVARVE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVARVE_SANITIZE})
endif()
if(KVARVE_FUZZ)  # what is fuzzed has to tell the fuzzer which ways it took
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
find_program(KVARVE_MOLD mold)
if(KVARVE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
find_program(KVARVE_CCACHE ccache)
if(KVARVE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVARVE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${KVARVE_CCACHE})
endif()

# Sanitizer builds read the headers that everything includes once, not once a source, and do not optimise tests' own code:
# half of such a build was that. The release build does neither, so that a source still has to include what it uses.
set(KVARVE_PRECOMPILED <algorithm> <array> <atomic> <chrono> <cstring> <functional> <map> <memory> <mutex> <optional> <set> <span>
    <string> <string_view> <thread> <unordered_map> <utility> <vector>
    <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h>)
set(KVARVE_PRECOMPILES OFF)
if(KVARVE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(KVARVE_PRECOMPILES ON)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
  set(CMAKE_PCH_INSTANTIATE_TEMPLATES OFF)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/empty.cc CONTENT "int main() {}\n" @ONLY)
  add_library(kv_precompiled STATIC ${PROJECT_BINARY_DIR}/precompiled/empty.cc)
  target_link_libraries(kv_precompiled PRIVATE kv_options absl::flat_hash_map absl::statusor absl::str_format Threads::Threads)
  target_precompile_headers(kv_precompiled PRIVATE ${KVARVE_PRECOMPILED})
  # An executable: its code is position independent in another way than a library's.
  add_executable(kv_precompiled_test ${PROJECT_BINARY_DIR}/precompiled/empty.cc)
  target_compile_options(kv_precompiled_test PRIVATE -O0)
  target_link_libraries(kv_precompiled_test PRIVATE kv_options absl::flat_hash_map absl::statusor absl::str_format GTest::gmock
                                                    Threads::Threads)
  target_precompile_headers(kv_precompiled_test PRIVATE <gmock/gmock.h> <gtest/gtest.h> ${KVARVE_PRECOMPILED})
endif()

# kv_library(NAME kv_block HDRS a.h SRCS a.cc DEPS kv_base absl::status)
# Every header is also compiled alone, so that it names what it needs, by a target beside the library which nothing but `all` needs;
# once is enough, so not under sanitizers. x.cc includes x.h first (tests/architecture/check_includes.py), and so is that compilation
# of x.h.
function(kv_library)
  cmake_parse_arguments(ARG "SHARED" "NAME" "HDRS;SRCS;DEPS" ${ARGN})
  if(NOT ARG_SRCS)
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE kv_options ${ARG_DEPS} Threads::Threads)
  else()
    if(ARG_SHARED)
      add_library(${ARG_NAME} SHARED ${ARG_SRCS})
    else()
      add_library(${ARG_NAME} STATIC ${ARG_SRCS})
    endif()
    target_link_libraries(${ARG_NAME} PUBLIC kv_options ${ARG_DEPS} Threads::Threads)
    if(KVARVE_PRECOMPILES AND NOT ARG_SHARED)
      target_precompile_headers(${ARG_NAME} REUSE_FROM kv_precompiled)
    endif()
  endif()
  if(KVARVE_SANITIZE)
    return()
  endif()
  set(checks)
  foreach(header ${ARG_HDRS})
    string(REGEX REPLACE "\\.h$" ".cc" own ${header})
    if(own IN_LIST ARG_SRCS)
      continue()
    endif()
    string(REPLACE "/" "_" stem ${header})
    set(check ${CMAKE_CURRENT_BINARY_DIR}/header_alone/${stem}.cc)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    file(CONFIGURE OUTPUT ${check} CONTENT "#include \"${path}\"  // IWYU pragma: keep\n" @ONLY)
    list(APPEND checks ${check})
  endforeach()
  if(checks)
    add_library(${ARG_NAME}_headers OBJECT ${checks})
    target_link_libraries(${ARG_NAME}_headers PRIVATE ${ARG_NAME})
    if(KVARVE_PRECOMPILES AND NOT ARG_SHARED)
      target_precompile_headers(${ARG_NAME}_headers REUSE_FROM kv_precompiled)
    endif()
  endif()
endfunction()

# kv_binary(NAME kvarved SRCS main.cc DEPS ...): lands in build/bin.
function(kv_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kv_options ${ARG_DEPS} Threads::Threads)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# kv_test(NAME x_test SRCS x_test.cc DEPS ... [LABEL unit|integration|sim|e2e] [TIMEOUT s] [ARGS ...])
function(kv_test)
  cmake_parse_arguments(ARG "" "NAME;LABEL;TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kv_options ${ARG_DEPS} GTest::gmock GTest::gtest_main Threads::Threads)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(KVARVE_PRECOMPILES AND NOT "${ARG_SRCS}" MATCHES "\\.c(;|$)")
    target_compile_options(${ARG_NAME} PRIVATE -O0)
    target_precompile_headers(${ARG_NAME} REUSE_FROM kv_precompiled_test)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(KVARVE_SANITIZE MATCHES address)
    set_tests_properties(${ARG_NAME} PROPERTIES ENVIRONMENT
                         "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/leaks.supp:print_suppressions=0")
  endif()
endfunction()

# kv_tests_by_mailbox(x_test ...): each once more, with calls by the mailbox of the session (client/local/mailbox.h) and
# not by the socket alone.
function(kv_tests_by_mailbox)
  foreach(test ${ARGN})
    add_test(NAME ${test}_by_mailbox COMMAND ${test} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    get_test_property(${test} ENVIRONMENT environment)
    if(NOT environment)
      set(environment)
    endif()
    set_tests_properties(${test}_by_mailbox PROPERTIES LABELS unit TIMEOUT 120
                         ENVIRONMENT "${environment};KVARVE_TEST_MAILBOX=1")
  endforeach()
endfunction()

# kv_races_beside_grpc(x_test ...): tests that link gRPC, which ThreadSanitizer cannot see into: what it has to know
# (kv_grpc_order of services/rpc), and what it may not say.
function(kv_races_beside_grpc)
  if(NOT KVARVE_SANITIZE MATCHES thread)
    return()
  endif()
  foreach(test ${ARGN})
    target_sources(${test} PRIVATE $<TARGET_OBJECTS:kv_grpc_order>)
    set_tests_properties(${test} PROPERTIES ENVIRONMENT ${KVARVE_RACES_BESIDE_GRPC})
  endforeach()
endfunction()
set(KVARVE_RACES_BESIDE_GRPC TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/races.supp:ignore_noninstrumented_modules=1)

# kv_bench(NAME index_bench SRCS index_bench.cc DEPS ...): lands in build/bench, run by ./dev bench. Under sanitizers it
# is made only when asked for.
function(kv_bench)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kv_options ${ARG_DEPS} Threads::Threads)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  if(KVARVE_SANITIZE)
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()
