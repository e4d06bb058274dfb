# The standard library's headers, which are a third of what compiling a file takes, are parsed once for each target. Wheels
# that are shipped are compiled without: there every file shows that its own includes are complete.
set(tilewise_standard_headers <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory>
    <optional> <random> <set> <span> <sstream> <string> <string_view> <utility> <vector>)

# tilewise_allow_precompiled(): ccache keeps a precompiled header, and what is compiled with it, only where it is told
# that no file looks at its own time. Of the folder that calls it, and those below.
macro(tilewise_allow_precompiled)
  foreach(language IN ITEMS C CXX)
    if(CMAKE_${language}_COMPILER_LAUNCHER MATCHES "ccache$" AND NOT CMAKE_${language}_COMPILER_LAUNCHER MATCHES "CCACHE_SLOPPINESS")
      list(PREPEND CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
    endif()
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Else it holds the times of headers, and is another one each time that it is compiled.
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endmacro()

# tilewise_precompile(target header...): of its files but those with options of their own, which set
# SKIP_PRECOMPILE_HEADERS, these headers too.
function(tilewise_precompile target)
  if(TILEWISE_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${tilewise_standard_headers} ${ARGN})
  endif()
endfunction()
