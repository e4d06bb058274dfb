# How Tilewise's own code is compiled: warnings and sanitizers. Link tilewise_compile PRIVATE.
add_library(tilewise_compile INTERFACE)
target_compile_options(tilewise_compile INTERFACE -Wall -Wextra -Wconversion)
if(TILEWISE_WERROR)
  target_compile_options(tilewise_compile INTERFACE -Werror)
endif()

# Sanitizers must reach every object and link of the build, so they are directory-wide.
if(TILEWISE_SANITIZE)
  if(TILEWISE_SANITIZE MATCHES "^(ON|TRUE|YES|1)$")
    set(tilewise_sanitizers "address,undefined")
  else()
    set(tilewise_sanitizers "${TILEWISE_SANITIZE}")
  endif()
  add_compile_options(-fsanitize=${tilewise_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${tilewise_sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # C functions found with dlsym are called through types of our own for what they point to.
    add_compile_options(-fno-sanitize=function)
  endif()
endif()
