# Installs the library, its headers, licences and definitions, and the packages that find_package(tilewise) and
# pkg-config read (a wheel has TilewiseWheel.cmake). cmake --install BUILD --component tilewise_development installs these alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
target_include_directories(tilewise INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS tilewise EXPORT tilewise
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tilewise_development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tilewise_development)
install(DIRECTORY include/tilewise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT tilewise_development)
# Not as dlpack/dlpack.h, which may be another project's: tilewise/dlpack.h includes that one where there is one.
install(FILES third_party/dlpack/dlpack.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tilewise/third_party/dlpack
  COMPONENT tilewise_development)

install(EXPORT tilewise NAMESPACE tilewise:: FILE tilewiseTargets.cmake DESTINATION ${package_directory}
  COMPONENT tilewise_development)
configure_package_config_file(cmake/tilewiseConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake
  INSTALL_DESTINATION ${package_directory} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tilewiseConfigVersion.cmake
  DESTINATION ${package_directory} COMPONENT tilewise_development)

# The licences of what is within, and what the headers' comments call docs/semantics.md.
install(FILES LICENSE NOTICE docs/semantics.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tilewise_development)
install(DIRECTORY third_party/licenses DESTINATION ${CMAKE_INSTALL_DOCDIR}/third_party COMPONENT tilewise_development)

# pkg-config's file says where things are from its own place on, so that the installed tree can be moved.
set(pkgconfig_directory ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(kind IN ITEMS LIB INCLUDE)
  string(TOLOWER ${kind} name)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}DIR}")
    set(pkgconfig_${name}dir "${CMAKE_INSTALL_${kind}DIR}")
  else()
    set(pkgconfig_${name}dir "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
  endif()
endforeach()
if(IS_ABSOLUTE "${pkgconfig_directory}")
  set(pkgconfig_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH to_prefix /${pkgconfig_directory} /)
  string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
  set(pkgconfig_prefix "\${pcfiledir}/${to_prefix}")
endif()
# A program that links a static library links what that needs, the C++ library too where the program is C.
set(pkgconfig_libraries "")
get_target_property(library_type tilewise TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  set(libraries ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(FILTER libraries INCLUDE REGEX "^(std)?c\\+\\+$")
  foreach(library IN LISTS libraries ITEMS m ${CMAKE_DL_LIBS})
    string(APPEND pkgconfig_libraries " -l${library}")
  endforeach()
  string(APPEND pkgconfig_libraries " -pthread")
endif()
configure_file(cmake/tilewise.pc.in ${CMAKE_CURRENT_BINARY_DIR}/tilewise.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewise.pc DESTINATION ${pkgconfig_directory} COMPONENT tilewise_development)
