# LibTorch straight from the unpacked PyPI wheel, as the target `baton_torch`.
#
#   BATON_TORCH_ROOT       the wheel's folder (holds include/ and lib/)
#   BATON_TORCH_CUDA_LIBS  folders of libcudart.so.13 and libcupti.so.13, which libtorch_cpu needs
#                          even without a GPU; default: the nvidia wheels beside torch, then a
#                          CUDA toolkit
if(TARGET baton_torch)
  return()
endif()
set(BATON_TORCH_CUDA_LIBS "" CACHE STRING "Folders of libcudart.so.13 and libcupti.so.13")

if(NOT EXISTS "${BATON_TORCH_ROOT}/include/ATen/ATen.h")
  message(FATAL_ERROR "BATON_TORCH_ROOT='${BATON_TORCH_ROOT}' holds no include/ATen/ATen.h. Set it to "
                      "the folder of an unpacked torch 2.11 wheel (scripts/setup.sh test installs one "
                      "into build/venv), or configure with -DBATON_WITH_TORCH=OFF")
endif()
foreach(lib torch_cpu c10)
  if(NOT EXISTS "${BATON_TORCH_ROOT}/lib/lib${lib}.so")
    message(FATAL_ERROR "BATON_TORCH_ROOT='${BATON_TORCH_ROOT}' holds no lib/lib${lib}.so")
  endif()
endforeach()

set(_cuda_lib_dirs ${BATON_TORCH_CUDA_LIBS} "${BATON_TORCH_ROOT}/../nvidia/cu13/lib"
                   /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
set(BATON_TORCH_RPATH "${BATON_TORCH_ROOT}/lib")
foreach(lib cudart cupti)
  find_library(BATON_TORCH_${lib} NAMES lib${lib}.so.13 PATHS ${_cuda_lib_dirs} NO_DEFAULT_PATH)
  if(NOT BATON_TORCH_${lib})
    message(FATAL_ERROR "lib${lib}.so.13 is in none of: ${_cuda_lib_dirs}. Install the wheel that "
                        "carries it (nvidia-cuda-runtime, nvidia-cuda-cupti) beside torch, or name its "
                        "folder in BATON_TORCH_CUDA_LIBS")
  endif()
  get_filename_component(_dir "${BATON_TORCH_${lib}}" DIRECTORY)
  list(APPEND BATON_TORCH_RPATH "${_dir}")
endforeach()
list(REMOVE_DUPLICATES BATON_TORCH_RPATH)

add_library(baton_torch INTERFACE)
# After the system's folders: the wheel ships old copies of protobuf, fmt and others.
target_compile_options(baton_torch INTERFACE
  "SHELL:-idirafter \"${BATON_TORCH_ROOT}/include\""
  "SHELL:-idirafter \"${BATON_TORCH_ROOT}/include/torch/csrc/api/include\"")
target_link_libraries(baton_torch INTERFACE
  "${BATON_TORCH_ROOT}/lib/libtorch_cpu.so" "${BATON_TORCH_ROOT}/lib/libc10.so")
foreach(_dir IN LISTS BATON_TORCH_RPATH)
  target_link_options(baton_torch INTERFACE "LINKER:-rpath-link,${_dir}" "LINKER:-rpath,${_dir}")
endforeach()
