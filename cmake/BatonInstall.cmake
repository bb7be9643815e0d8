# `cmake --install BUILD --prefix DIR`: the daemons, the baton command, configuration files, documents.
# `baton up` finds the daemons beside itself, so the tree can be moved. Binaries keep no path into
# the build; only a site's own UCX is remembered.
include(GNUInstallDirs)

set(daemons baton baton-prefill baton-decode baton-router)
if(BATON_UCX_ROOT)
  set_target_properties(${daemons} PROPERTIES INSTALL_RPATH "${BATON_UCX_ROOT}/lib")
endif()
install(TARGETS ${daemons} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/deploy/config/" DESTINATION "${CMAKE_INSTALL_DATADIR}/baton/config"
        FILES_MATCHING PATTERN "*.yaml")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs"
        FILES_MATCHING PATTERN "*.md" PATTERN "*.py" PATTERN "*_pb2*" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/proto/" DESTINATION "${CMAKE_INSTALL_DATADIR}/baton/proto"
        FILES_MATCHING PATTERN "*.proto")
