# Run by ctest: install, configure the consumer, build it, run its programs. Any failure is fatal.
function(check)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(SANITIZERS)
  set(flags -fsanitize=${SANITIZERS})
endif()
file(REMOVE_RECURSE ${WORK})
check(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --component tilewise_development --prefix ${WORK}/prefix)
check(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=${CONFIG}
  -D CMAKE_PREFIX_PATH=${WORK}/prefix -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
  "-DCMAKE_C_FLAGS=${flags}" "-DCMAKE_CXX_FLAGS=${flags}")
check(${CMAKE_COMMAND} --build ${WORK}/build --config ${CONFIG})
foreach(program IN ITEMS attention_cpp attention_c decode_cpp decode_c)
  check(${WORK}/build/${program})
endforeach()
