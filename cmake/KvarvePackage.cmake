# `./dev package`: one Debian package, by CPack. What only a system wants (the unit, man pages, completions) is the component
# `system`, which plain `cmake --install` leaves out.
set(KVARVE_PAGES ${PROJECT_BINARY_DIR}/pages)
add_custom_command(
  OUTPUT ${KVARVE_PAGES}/kvarve.1
  COMMAND ${KVARVE_SYSTEM_PYTHON} ${PROJECT_SOURCE_DIR}/deploy/package/make_pages.py
          --kvarved $<TARGET_FILE:kvarved> --kvarve $<TARGET_FILE:kvarve> --folder ${KVARVE_PAGES}
  DEPENDS kvarved kvarve ${PROJECT_SOURCE_DIR}/deploy/package/make_pages.py)
add_custom_target(kvarve_pages DEPENDS ${KVARVE_PAGES}/kvarve.1)

function(kvarve_install_system destination)
  install(FILES ${ARGN} DESTINATION ${destination} COMPONENT system EXCLUDE_FROM_ALL)
endfunction()
kvarve_install_system(share/man/man1 ${KVARVE_PAGES}/kvarve.1)
kvarve_install_system(share/man/man5 ${KVARVE_PAGES}/kvarved.yaml.5)
kvarve_install_system(share/man/man8 ${KVARVE_PAGES}/kvarved.8)
kvarve_install_system(share/bash-completion/completions ${KVARVE_PAGES}/bash/kvarve ${KVARVE_PAGES}/bash/kvarved)
kvarve_install_system(share/zsh/vendor-completions ${KVARVE_PAGES}/zsh/_kvarve ${KVARVE_PAGES}/zsh/_kvarved)
kvarve_install_system(share/fish/vendor_completions.d ${KVARVE_PAGES}/fish/kvarve.fish ${KVARVE_PAGES}/fish/kvarved.fish)
kvarve_install_system(share/kvarve deploy/debian/kvarved.yaml deploy/helm/kvarve/files/seccomp/kvarved.json)
kvarve_install_system(share/doc/kvarve CHANGELOG.md LICENSE)
kvarve_install_system(lib/systemd/system deploy/systemd/kvarved.service)
install(FILES deploy/systemd/kvarve.sysusers DESTINATION lib/sysusers.d RENAME kvarve.conf COMPONENT system EXCLUDE_FROM_ALL)
install(FILES deploy/systemd/kvarve.tmpfiles DESTINATION lib/tmpfiles.d RENAME kvarve.conf COMPONENT system EXCLUDE_FROM_ALL)

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # packaging builds nothing: ./dev package built what is needed
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvarve)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "kvarve developers <kvarve@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV cache service for LLM inference")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL Unspecified system)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd-standalone-sysusers | systemd, systemd-standalone-tmpfiles | systemd")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/postinst ${PROJECT_SOURCE_DIR}/deploy/debian/prerm
    ${PROJECT_SOURCE_DIR}/deploy/debian/postrm)
include(CPack)
