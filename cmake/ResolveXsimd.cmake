# Finds xsimd >= 13 and makes the target `seeddelta_xsimd`: a system package first (distribution, conda), else the headers
# that the PyPI package `pythran` carries. xsimd's own version file accepts the same major version only, so the version is
# compared here.
set(_minimum 13)
find_package(xsimd QUIET)
add_library(seeddelta_xsimd INTERFACE)
if(xsimd_FOUND AND xsimd_VERSION VERSION_GREATER_EQUAL ${_minimum})
  target_link_libraries(seeddelta_xsimd INTERFACE xsimd)
  message(STATUS "xsimd ${xsimd_VERSION} from ${xsimd_DIR}")
else()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('pythran').origin).parent.as_posix())"
    OUTPUT_VARIABLE _pythran OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed ERROR_QUIET)
  if(_failed OR NOT EXISTS "${_pythran}/xsimd/xsimd.hpp")
    message(FATAL_ERROR "xsimd >= ${_minimum} not found. Install it with `pip install 'pythran>=0.19,<0.20'` (it carries the "
                        "headers), or your system's xsimd package.")
  endif()
  file(STRINGS "${_pythran}/xsimd/config/xsimd_config.hpp" _line REGEX "define XSIMD_VERSION_MAJOR")
  string(REGEX MATCH "[0-9]+" _major "${_line}")
  if(_major LESS ${_minimum})
    message(FATAL_ERROR "pythran carries xsimd ${_major}, at least ${_minimum} is needed: pip install 'pythran>=0.19,<0.20'")
  endif()
  target_include_directories(seeddelta_xsimd SYSTEM INTERFACE "${_pythran}")
  message(STATUS "xsimd ${_major} from ${_pythran}")
endif()
