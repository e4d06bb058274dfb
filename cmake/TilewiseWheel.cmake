# What a wheel has beside the module and the command, so that C programs are built on an installed package: the shared
# library, the headers and the CMake package, below tilewise/. A wheel holds no links, so the library bears its soname.
include(CMakePackageConfigHelpers)

set(package_directory tilewise/lib/cmake/tilewise)
get_target_property(shared tilewise::shared ALIASED_TARGET)
get_target_property(soversion ${shared} SOVERSION)
set_target_properties(${shared} PROPERTIES EXCLUDE_FROM_ALL OFF EXPORT_NAME tilewise VERSION ${soversion})
target_include_directories(${shared} INTERFACE $<INSTALL_INTERFACE:tilewise/include>)
install(TARGETS ${shared} EXPORT tilewise LIBRARY DESTINATION tilewise/lib NAMELINK_SKIP)
install(DIRECTORY include/tilewise DESTINATION tilewise/include)
# Not as dlpack/dlpack.h, which may be another project's: tilewise/dlpack.h includes that one where there is one.
install(FILES third_party/dlpack/dlpack.h DESTINATION tilewise/include/tilewise/third_party/dlpack)
install(EXPORT tilewise NAMESPACE tilewise:: FILE tilewiseTargets.cmake DESTINATION ${package_directory})
configure_package_config_file(cmake/tilewiseConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake
  INSTALL_DESTINATION ${package_directory} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake
  DESTINATION ${package_directory})
