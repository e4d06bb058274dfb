# Run by ctest: install, configure the consumer, build it, run its PROGRAMS (a list with commas). With DOCUMENT the
# consumer is what that tutorial has: its CMakeLists.txt, attention.cpp and attention.c. Any failure is fatal.
function(check)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(SANITIZERS)
  set(flags -fsanitize=${SANITIZERS})
endif()
file(REMOVE_RECURSE ${WORK})
if(DOCUMENT)
  set(SOURCE ${WORK}/source)
  foreach(file IN ITEMS CMakeLists.txt:cmake attention.cpp:cpp attention.c:c)
    string(REPLACE ":" ";" parts ${file})
    list(GET parts 0 name)
    list(GET parts 1 language)
    execute_process(COMMAND ${PYTHON} ${EXTRACT} ${DOCUMENT} ${language} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${SOURCE}/${name} "${text}")
  endforeach()
endif()
check(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --component tilewise_development --prefix ${WORK}/prefix)
check(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=${CONFIG}
  -D CMAKE_PREFIX_PATH=${WORK}/prefix -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
  "-DCMAKE_C_FLAGS=${flags}" "-DCMAKE_CXX_FLAGS=${flags}")
check(${CMAKE_COMMAND} --build ${WORK}/build --config ${CONFIG})
string(REPLACE "," ";" programs ${PROGRAMS})
foreach(program IN LISTS programs)
  check(${WORK}/build/${program})
endforeach()
