// All inner loops compiled for one instruction set; see CMakeLists.txt for the flags.
#include "kernels/attention_impl.h"
#include "kernels/elementwise_impl.h"
#include "kernels/gemm_dispatch.h"
#include "kernels/isa_table.h"

namespace baton {

const KernelTable& Avx2Kernels() {
  static constexpr KernelTable kTable = {
      GemmTile, UnpackPanel, AttentionUnitRun, KeyMassUnitRun, TransposeQueries, RmsNormRow,
      RopeRow,  SiluMulRow,  AddRow,           MaxRow,         SumExpRow};
  return kTable;
}

}  // namespace baton
