# tilewise_add_pytest(name LABEL label [TIMEOUT seconds] [COST seconds]): runs pytest on the calling folder against this build's
# `tilewise` command. Left out, with a word, where no Python with pytest and NumPy is found.
if(NOT DEFINED TILEWISE_TEST_PYTHON)
  if(DEFINED Python_EXECUTABLE)
    set(tilewise_test_python ${Python_EXECUTABLE})
  else()
    find_program(tilewise_test_python NAMES python3 HINTS ${PROJECT_SOURCE_DIR}/.venv/bin NO_CACHE)
  endif()
  execute_process(COMMAND ${tilewise_test_python} -c "import numpy, pytest"
                  RESULT_VARIABLE tilewise_test_python_status OUTPUT_QUIET ERROR_QUIET)
  if(tilewise_test_python_status EQUAL 0)
    set(TILEWISE_TEST_PYTHON ${tilewise_test_python} CACHE FILEPATH "A Python with pytest and NumPy, for the tests")
  endif()
endif()

function(tilewise_add_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT;COST" "")
  if(NOT TARGET tilewise_cli OR NOT TILEWISE_TEST_PYTHON)
    message(STATUS "Test ${name} is left out: it needs the tilewise command and a Python with pytest and NumPy")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${TILEWISE_TEST_PYTHON} -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    LABELS ${arg_LABEL}
    TIMEOUT ${arg_TIMEOUT}
    COST ${arg_COST}
    ENVIRONMENT "TILEWISE_CLI=$<TARGET_FILE:tilewise_cli>;PYTHONDONTWRITEBYTECODE=1")
endfunction()
