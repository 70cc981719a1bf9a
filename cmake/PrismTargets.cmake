# Target functions shared by every folder. One object-free static library a folder keeps the layers visible in the link graph.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
# The programs run on machines that have none of these: abseil's archives instead of its shared objects (and of fmt and
# spdlog what src/base compiles).
get_property(prism_imported DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(target IN LISTS prism_imported)
  if(target MATCHES "^absl::")
    get_target_property(location ${target} IMPORTED_LOCATION_NONE)
    if(location)
      string(REGEX REPLACE "\\.so(\\.[0-9.]*)?$" ".a" archive "${location}")
      if(EXISTS ${archive})
        set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE ${archive} IMPORTED_NO_SONAME TRUE)
      endif()
    endif()
  endif()
endforeach()

if(PRISM_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

find_path(PRISM_CUDA_INCLUDE cuda.h
  HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include ${CMAKE_SOURCE_DIR}/.deps/include
  DOC "Public CUDA 13 headers (an installed toolkit, or `make deps`)" REQUIRED)
find_path(PRISM_NCCL_INCLUDE nccl.h
  HINTS ${PRISM_CUDA_INCLUDE} ${CMAKE_SOURCE_DIR}/.deps/include DOC "Public NCCL headers" REQUIRED)

add_library(prism_warnings INTERFACE)
# -Wrestrict of GCC 12 warns about std::string's own operator+ (GCC bug 105651).
target_compile_options(prism_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<BOOL:${PRISM_WERROR}>:-Werror>)

add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE ${PRISM_CUDA_INCLUDE} ${PRISM_NCCL_INCLUDE})

add_library(prism_sanitize INTERFACE)
if(PRISM_SANITIZE)
  # Libraries of foreign processes are optimized in any build: what only their unused code refers to is not there at link.
  set(PRISM_FOREIGN_OPTIONS -O1)
  target_compile_options(prism_sanitize INTERFACE -fsanitize=${PRISM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(prism_sanitize INTERFACE -fsanitize=${PRISM_SANITIZE})
endif()

# What most sources include, compiled once where PRISM_PRECOMPILED_HEADERS asks for it: for libraries, and with GoogleTest
# for tests. Clang alone gains by it (GCC's are five times as large), and GCC's build sees that sources include what they use.
function(prism_precompiled_headers NAME)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cc "")
  add_library(${NAME} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cc)
  target_link_libraries(${NAME} PRIVATE Threads::Threads prism_warnings prism_sanitize)
  target_precompile_headers(${NAME} PRIVATE
    <algorithm> <atomic> <cmath> <cstdint> <cstdio> <cstdlib> <cstring> <filesystem> <fstream> <functional> <map> <memory> <mutex>
    <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>
    <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
    <fmt/format.h> <nlohmann/json.hpp> ${ARGN})
endfunction()
if(PRISM_PRECOMPILED_HEADERS)
  prism_precompiled_headers(prism_headers)
  if(PRISM_BUILD_TESTS)
    prism_precompiled_headers(prism_test_headers <gmock/gmock.h> <gtest/gtest.h>)
    # As programs are compiled.
    set_target_properties(prism_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(prism_test_headers PRIVATE -fPIE)
    target_link_libraries(prism_test_headers PRIVATE GTest::gmock)
  endif()
endif()

# prism_library(NAME SOURCES a.cc ... [DEPS x y]): static library of one folder, includes rooted at the repository
# ("src/trace/reader.h", "hostcuda/driver/stream.h"); public API headers at include/ ("prism/trace.h").
function(prism_library NAME)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${NAME} STATIC ${A_SOURCES})
  target_include_directories(${NAME} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/hostcuda/include)
  target_link_libraries(${NAME} PUBLIC ${A_DEPS} Threads::Threads PRIVATE prism_warnings prism_sanitize)
  if(PRISM_PRECOMPILED_HEADERS)
    target_precompile_headers(${NAME} REUSE_FROM prism_headers)
  endif()
endfunction()

# SINGLE_THREADED tests, in whose sources and tests no thread is started, are not built for the thread sanitizer.
set(PRISM_BUILD_SINGLE_THREADED_TESTS ${PRISM_BUILD_TESTS})
if(PRISM_SANITIZE STREQUAL "thread")
  set(PRISM_BUILD_SINGLE_THREADED_TESTS OFF)
endif()

# prism_test(NAME SOURCES a_test.cc DEPS x [LABEL unit|integration|golden|gpu|slow] [SINGLE_THREADED] [OF_LIBRARIES]): one
# GoogleTest binary. OF_LIBRARIES: of the libraries of foreign processes, which are never sanitized; not built by the
# sanitizers, which test their sources in other tests. All of them and what they run: the target prism_tests.
add_custom_target(prism_tests)
function(prism_test NAME)
  if(NOT PRISM_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "SINGLE_THREADED;OF_LIBRARIES" "LABEL" "SOURCES;DEPS" ${ARGN})
  if(A_SINGLE_THREADED AND NOT PRISM_BUILD_SINGLE_THREADED_TESTS)
    return()
  endif()
  if(A_OF_LIBRARIES AND PRISM_SANITIZE)
    return()
  endif()
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  add_executable(${NAME} ${A_SOURCES})
  target_include_directories(${NAME} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/hostcuda/include)
  target_link_libraries(${NAME} PRIVATE ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads prism_warnings prism_sanitize)
  # What is tested is optimized; its tests are not worth the time that it takes.
  target_compile_options(${NAME} PRIVATE -O0)
  if(PRISM_PRECOMPILED_HEADERS)
    target_precompile_headers(${NAME} REUSE_FROM prism_test_headers)
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME})
  set_tests_properties(${NAME} PROPERTIES LABELS ${A_LABEL} TIMEOUT 300)
  add_dependencies(prism_tests ${NAME})
endfunction()

# prism_preload(NAME SONAME libx.so.1 SOURCES ... [EXPORTS map] [DEPS static-libs]): a library that is preloaded into, or
# opened by, foreign processes: hidden symbols, no dependency but libc, C++ runtime linked statically, never sanitized
# (a sanitizer's runtime cannot enter a foreign process late).
function(prism_preload NAME)
  cmake_parse_arguments(A "" "SONAME;EXPORTS;DIRECTORY" "SOURCES;DEPS" ${ARGN})
  add_library(${NAME} SHARED ${A_SOURCES})
  target_include_directories(${NAME} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/hostcuda/include)
  target_compile_options(${NAME} PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -fno-semantic-interposition ${PRISM_FOREIGN_OPTIONS})
  target_link_libraries(${NAME} PRIVATE ${A_DEPS} cuda_headers Threads::Threads ${CMAKE_DL_LIBS} prism_warnings)
  target_link_options(${NAME} PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,-z,defs)
  # LIBRARY file name is the SONAME itself, so that the loader and dlopen find it without links.
  set_target_properties(${NAME} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME ${A_SONAME} NO_SONAME ON)
  target_link_options(${NAME} PRIVATE -Wl,-soname,${A_SONAME})
  if(A_DIRECTORY)
    set_target_properties(${NAME} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${A_DIRECTORY})
  endif()
  if(A_EXPORTS)
    target_link_options(${NAME} PRIVATE -Wl,--version-script=${A_EXPORTS})
    set_target_properties(${NAME} PROPERTIES LINK_DEPENDS ${A_EXPORTS})
  endif()
endfunction()
