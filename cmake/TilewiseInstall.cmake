# Installs the library, its headers and the package that find_package(tilewise) reads.
# cmake --install BUILD --component tilewise_development installs these alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
target_include_directories(tilewise INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS tilewise EXPORT tilewise
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tilewise_development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tilewise_development)
install(DIRECTORY include/tilewise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT tilewise_development)
install(FILES third_party/dlpack/dlpack.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dlpack
  COMPONENT tilewise_development)

install(EXPORT tilewise NAMESPACE tilewise:: FILE tilewiseTargets.cmake DESTINATION ${package_directory}
  COMPONENT tilewise_development)
configure_package_config_file(cmake/tilewiseConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake
  INSTALL_DESTINATION ${package_directory} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake
  DESTINATION ${package_directory} COMPONENT tilewise_development)
