# room(NAME x LAYER n [COLD] HDRS ... SRCS ... DEPS rooms... LIBS external targets... ALONE sources...)
#
# Declares a room: one CMake target with a layer. A room may depend only on rooms of a lower
# layer; anything else stops the configuration. `.ci/check_layers.py` reads the same declarations
# and refuses an #include that crosses rooms without a declared dependency.
#
# With BATON_UNITY the sources of a room are compiled as one unit, but for those after ALONE, which use a
# local name of another one. COLD says that no loop of the room decides how fast anything is: a release build
# compiles it with -O1, which takes a fifth less time.
set_property(GLOBAL PROPERTY BATON_ROOMS "")

function(room)
  cmake_parse_arguments(R "COLD" "NAME;LAYER" "HDRS;SRCS;DEPS;LIBS;ALONE" ${ARGN})
  if(NOT R_NAME OR "${R_LAYER}" STREQUAL "")
    message(FATAL_ERROR "room(): NAME and LAYER are required (in ${CMAKE_CURRENT_SOURCE_DIR})")
  endif()
  if(R_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "room(${R_NAME}): unknown arguments ${R_UNPARSED_ARGUMENTS}")
  endif()
  if(R_SRCS)
    add_library(${R_NAME} STATIC ${R_SRCS} ${R_HDRS})
    if(BATON_UNITY)
      set_target_properties(${R_NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
      set_source_files_properties(${R_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    if(R_COLD)
      baton_cold(${R_NAME})
    endif()
    set(scope PUBLIC)
  else()
    add_library(${R_NAME} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${R_NAME} ${scope} "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${R_NAME} ${scope} ${R_DEPS} ${R_LIBS})
  set_property(GLOBAL APPEND PROPERTY BATON_ROOMS ${R_NAME})
  set_property(GLOBAL PROPERTY BATON_ROOM_${R_NAME}_LAYER ${R_LAYER})
  set_property(GLOBAL PROPERTY BATON_ROOM_${R_NAME}_DEPS "${R_DEPS}")
endfunction()

function(baton_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT BATON_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# Called once, after every room is declared.
function(baton_check_rooms)
  get_property(rooms GLOBAL PROPERTY BATON_ROOMS)
  foreach(name IN LISTS rooms)
    get_property(layer GLOBAL PROPERTY BATON_ROOM_${name}_LAYER)
    get_property(deps GLOBAL PROPERTY BATON_ROOM_${name}_DEPS)
    foreach(dep IN LISTS deps)
      if(NOT dep IN_LIST rooms)
        message(FATAL_ERROR "room ${name}: '${dep}' in DEPS is not a room (external targets go to LIBS)")
      endif()
      get_property(dep_layer GLOBAL PROPERTY BATON_ROOM_${dep}_LAYER)
      if(NOT dep_layer LESS layer)
        message(FATAL_ERROR "room ${name} (layer ${layer}) may not depend on ${dep} (layer ${dep_layer}): "
                            "a room links only rooms of a lower layer")
      endif()
    endforeach()
  endforeach()
endfunction()

# baton_test(SRC path/x_test.cc DEPS rooms... LIBS ... [RUNS targets...] [TIMEOUT s] [OPTIMIZE] [ALONE])
# Builds one GoogleTest binary and registers each of its tests with ctest, so that a skipped
# test shows in ctest's own count. The binary is named by its path below tests/, slashes as
# underscores. RUNS are programs that the test starts. A release build compiles tests without
# optimisation (it halves their build time) unless OPTIMIZE says that a test computes a lot itself.
#
# Unoptimised tests share one precompiled GoogleTest: it is a quarter of their build time. With
# BATON_UNITY a folder's tests are one unit and one binary (two, if some are optimised), but for
# those that say ALONE: they share a local name with another one, or are built by themselves.
#
# With BATON_TEST_SHARDS a binary is that many tests instead, each a share of its cases in one process: what
# cases share (a parsed vocabulary) is made once per shard, which is most of the time under a sanitizer.
function(baton_test)
  cmake_parse_arguments(T "OPTIMIZE;ALONE" "SRC;TIMEOUT" "DEPS;LIBS;RUNS" ${ARGN})
  set(alone TRUE)
  if(BATON_UNITY AND NOT T_ALONE)
    set(alone FALSE)
  endif()
  baton_test_name(name ${T_SRC} ${alone} "${T_OPTIMIZE}")
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${T_SRC})
  else()
    add_executable(${name} ${T_SRC})
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main)
    if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT T_OPTIMIZE)
      target_compile_options(${name} PRIVATE -O0 -pthread)
      target_precompile_headers(${name} REUSE_FROM precompiled_gtest)
    endif()
    set(props "")
    if(T_TIMEOUT AND alone)
      set(props TIMEOUT ${T_TIMEOUT})
    endif()
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${BATON_UNITY} UNITY_BUILD_BATCH_SIZE 16)
    baton_register_tests(${name} "${props}")
  endif()
  target_link_libraries(${name} PRIVATE ${T_DEPS} ${T_LIBS})
  if(T_RUNS)
    add_dependencies(${name} ${T_RUNS})
  endif()
endfunction()

function(baton_register_tests name props)
  if(NOT BATON_TEST_SHARDS)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES ${props})
    return()
  endif()
  math(EXPR last "${BATON_TEST_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${name}.${shard} COMMAND ${name})
    set_tests_properties(${name}.${shard} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${BATON_TEST_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# The binary's name: the test's path, or its folder's where the folder's tests are one binary.
function(baton_test_name out src alone optimize)
  file(RELATIVE_PATH rel "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}/${src}")
  string(REGEX REPLACE "\\.cc$" "" name "${rel}")
  if(NOT alone)
    cmake_path(GET rel PARENT_PATH name)
    if(optimize)
      string(APPEND name "_optimized")
    endif()
    string(APPEND name "_test")
  endif()
  string(REPLACE "/" "_" name "${name}")
  set(${out} "${name}" PARENT_SCOPE)
endfunction()
