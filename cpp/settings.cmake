# Compiler settings for all targets, and plait_room(), which defines the target of a room.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the Python module contains every static library
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD_RELOCATABLE ON)  # no absolute paths, so that ccache serves every checkout (CMake 4.0)
set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(PLAIT_CCACHE ccache)
    if(PLAIT_CCACHE)
        set(CMAKE_CXX_COMPILER_LAUNCHER ${PLAIT_CCACHE})
    endif()
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# The compiler must not contract expressions to fma(): results would depend on its version.
add_compile_options(-ffp-contract=off -ffunction-sections -fdata-sections)
if(NOT APPLE)
    add_link_options(LINKER:--gc-sections,--as-needed)
endif()

# Reproducible wheels: messages of failed checks contain names of source files, without the folder of the build.
if(DEFINED ENV{SOURCE_DATE_EPOCH})
    add_compile_options(-ffile-prefix-map=${PROJECT_BINARY_DIR}=build -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
    if(NOT APPLE)
        # The identity would be a digest that includes local symbols, some of which are named after paths.
        add_link_options(LINKER:--build-id=none)
    endif()
endif()

if(PLAIT_SANITIZE)
    add_compile_options(-fsanitize=${PLAIT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1
                        -fno-var-tracking)
    add_link_options(-fsanitize=${PLAIT_SANITIZE})
endif()

# The rooms that tests/coverage.py reports.
set(coverage_rooms gguf memory runtime)
if(PLAIT_COVERAGE)
    add_link_options(--coverage)
endif()

# Warnings for the code of this repository. Headers of other projects are included as SYSTEM.
add_library(plait_warnings INTERFACE)
target_compile_options(plait_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
    $<$<BOOL:${PLAIT_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False positives in std::string::operator+: https://gcc.gnu.org/PR105651
    target_compile_options(plait_warnings INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # std::stable_sort of libstdc++ 12 calls std::get_temporary_buffer, which C++17 deprecates.
    target_compile_options(plait_warnings INTERFACE -Wno-deprecated-declarations)
endif()
add_library(plait_strict_warnings INTERFACE)
target_compile_options(plait_strict_warnings INTERFACE -Wconversion)
target_link_libraries(plait_strict_warnings INTERFACE plait_warnings)

if(PLAIT_IPO)
    include(CheckIPOSupported)
    check_ipo_supported()
endif()

# plait_room(NAME [EXCLUDE regex] [LINK target ...])
#
# Defines the target plait_NAME from all source files below the current folder, except those that
# match the regex. LINK lists the rooms whose headers it may include (see the ladder in
# CONTRIBUTING.md).
#
# With PLAIT_UNITY, eight files are compiled as one, so the files of a room must not define different
# things with the same name in unnamed namespaces.
function(plait_room name)
    cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "EXCLUDE" "LINK")
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
    if(ROOM_EXCLUDE)
        list(FILTER sources EXCLUDE REGEX "${ROOM_EXCLUDE}")
    endif()
    set(target plait_${name})
    if(sources)
        add_library(${target} STATIC ${sources})
        target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/cpp)
        target_link_libraries(${target} PUBLIC ${ROOM_LINK} PRIVATE plait_strict_warnings)
        set_target_properties(${target} PROPERTIES
            INTERPROCEDURAL_OPTIMIZATION ${PLAIT_IPO}
            UNITY_BUILD ${PLAIT_UNITY} UNITY_BUILD_BATCH_SIZE 8)
        if(PLAIT_COVERAGE AND name IN_LIST coverage_rooms)
            target_compile_options(${target} PRIVATE --coverage -O0)
        endif()
    else()  # headers only
        add_library(${target} INTERFACE)
        target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR}/cpp)
        target_link_libraries(${target} INTERFACE ${ROOM_LINK})
    endif()
    set_property(GLOBAL APPEND PROPERTY PLAIT_ROOMS ${target})
endfunction()
