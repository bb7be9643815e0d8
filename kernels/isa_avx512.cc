// All inner loops compiled for one instruction set; see CMakeLists.txt for the flags.
#include "kernels/attention_impl.h"
#include "kernels/elementwise_impl.h"
#include "kernels/gemm_dispatch.h"
#include "kernels/isa_table.h"

namespace baton {
namespace {

// Quantised panels go through the loops of AVX2, which give the same bits: their 512-bit form has
// not run on such a processor yet.
void PlainGemmTile(const GemmTileArgs& g) {
  return IsQuantised(g.format) ? Avx2Kernels().gemm_tile(g) : GemmTile(g);
}
void PlainUnpackPanel(WeightFormat format, const std::byte* w, std::int64_t k, float* dst) {
  return IsQuantised(format) ? Avx2Kernels().unpack_panel(format, w, k, dst)
                             : UnpackPanel(format, w, k, dst);
}

}  // namespace

const KernelTable& Avx512Kernels() {
  static constexpr KernelTable kTable = {PlainGemmTile,  PlainUnpackPanel, AttentionUnitRun,
                                         KeyMassUnitRun, TransposeQueries, RmsNormRow,
                                         RopeRow,        SiluMulRow,       AddRow,
                                         MaxRow,         SumExpRow};
  return kTable;
}

}  // namespace baton
