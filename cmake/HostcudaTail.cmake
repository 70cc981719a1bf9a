# Libraries of hostcuda: hand-written objects plus a generated tail (hostcuda/api/generate.py).
find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)
set(HOSTCUDA_API_DIR ${CMAKE_SOURCE_DIR}/hostcuda/api)

# hostcuda_objects(NAME SOURCES a.cc ... [DEPS x]): hand-written code of stand-in libraries, an object library. Hidden
# symbols and never sanitized, because it ends up in libraries that foreign processes load.
function(hostcuda_objects NAME)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${NAME} OBJECT ${A_SOURCES})
  target_include_directories(${NAME} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/hostcuda/include)
  target_compile_options(${NAME} PRIVATE -fvisibility=hidden -fvisibility-inlines-hidden -fno-semantic-interposition ${PRISM_FOREIGN_OPTIONS})
  target_link_libraries(${NAME} PRIVATE cuda_headers prism_warnings ${A_DEPS})
endfunction()

# hostcuda_tail(TARGET LIBRARY libcublas [HAND object-library ...]): an object library that answers, by the policies of
# hostcuda/api/<LIBRARY>.json, every export that the HAND object libraries do not define. Sets in the caller's scope
#   <TARGET>_MAP   version script for the link (pass it to prism_preload's EXPORTS)
#   <TARGET>_HAND  text file with the names of the hand-written exports (for the reference page)
function(hostcuda_tail TARGET)
  cmake_parse_arguments(A "" "LIBRARY" "HAND" ${ARGN})
  set(json ${HOSTCUDA_API_DIR}/${A_LIBRARY}.json)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${TARGET}.c)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${TARGET}.map)
  set(listing ${CMAKE_CURRENT_BINARY_DIR}/${TARGET}.hand)
  set(objects)
  foreach(hand ${A_HAND})
    list(APPEND objects $<TARGET_OBJECTS:${hand}>)
  endforeach()
  add_custom_command(
    OUTPUT ${source} ${map} ${listing}
    COMMAND ${Python3_EXECUTABLE} ${HOSTCUDA_API_DIR}/generate.py tail --api ${json} --c ${source} --map ${map} --hand-list ${listing}
            --hand ${objects}
    DEPENDS ${HOSTCUDA_API_DIR}/generate.py ${json} ${objects}
    COMMENT "Generating the tail of ${A_LIBRARY}"
    COMMAND_EXPAND_LISTS VERBATIM)
  add_library(${TARGET} OBJECT ${source} ${HOSTCUDA_API_DIR}/tail_runtime.c)
  target_include_directories(${TARGET} PRIVATE ${CMAKE_SOURCE_DIR})
  # The generated definitions do not repeat the headers' types, so that no header has to be included; -fno-builtin for
  # names that the compiler might know.
  target_compile_options(${TARGET} PRIVATE -fno-builtin -Wall -Wextra $<$<BOOL:${PRISM_WERROR}>:-Werror>)
  set_property(GLOBAL APPEND PROPERTY HOSTCUDA_PAGE_ARGUMENTS --library ${json} --hand-list ${listing})
  set_property(GLOBAL APPEND PROPERTY HOSTCUDA_PAGE_DEPENDS ${json} ${listing})
  set(${TARGET}_MAP ${map} PARENT_SCOPE)
  set(${TARGET}_HAND ${listing} PARENT_SCOPE)
endfunction()

# hostcuda_library(LIBRARY SONAME libx.so.1 [HAND object-library ...] [DEPS x]): the stand-in for one library of the CUDA
# stack in HOSTCUDA_LIB_DIR, a target named hostcuda_<LIBRARY>.
function(hostcuda_library LIBRARY)
  cmake_parse_arguments(A "" "SONAME" "HAND;DEPS" ${ARGN})
  hostcuda_tail(${LIBRARY}_tail LIBRARY ${LIBRARY} HAND ${A_HAND})
  set(objects $<TARGET_OBJECTS:${LIBRARY}_tail>)
  foreach(hand ${A_HAND})
    list(APPEND objects $<TARGET_OBJECTS:${hand}>)
  endforeach()
  prism_preload(hostcuda_${LIBRARY} SONAME ${A_SONAME} DIRECTORY ${HOSTCUDA_LIB_DIR} EXPORTS ${${LIBRARY}_tail_MAP}
    SOURCES ${objects} DEPS ${A_DEPS})
  set_target_properties(hostcuda_${LIBRARY} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
