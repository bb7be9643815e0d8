#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/torch/device.h"

namespace baton::torch_ops {
namespace {

// Through c10's device-independent interface: a process without a GPU need not load libc10_cuda.
cuda::Stream CurrentStream(const at::Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  return static_cast<cuda::Stream>(guard.getStream(x.device()).native_handle());
}

void CheckLaunch(const char* op, const cuda::LaunchStatus& status) {
  TORCH_CHECK(status.ok(), op, ": ", status.ToString());
}

int SmCount(const at::Tensor& x) {
  const c10::DeviceGuard device(x.device());
  return std::max(1, cuda::SmCount());
}

// A host array as a byte tensor on the device of `like`.
template <typename T>
at::Tensor Upload(const std::vector<T>& host, const at::Tensor& like) {
  const at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(host.size() * sizeof(T))}, at::kByte);
  if (!host.empty()) {
    std::memcpy(bytes.mutable_data_ptr<std::uint8_t>(), host.data(), host.size() * sizeof(T));
  }
  return bytes.to(like.device());
}
template <typename T>
const T* As(const at::Tensor& bytes) {
  return reinterpret_cast<const T*>(bytes.const_data_ptr<std::uint8_t>());
}

const std::uint16_t* HalfBits(const at::Tensor& scales) {
  return static_cast<const std::uint16_t*>(scales.const_data_ptr());
}

int MaxPages(const DeviceTask& task) {
  int most = 0;
  for (std::size_t h = 0; h + 1 < task.segment_offsets.size(); ++h) {
    int pages = 0;
    for (std::int32_t i = task.segment_offsets[h]; i < task.segment_offsets[h + 1]; ++i) {
      pages += (task.segments[static_cast<std::size_t>(i)].num_rows + kPageRows - 1) / kPageRows;
    }
    most = std::max(most, pages);
  }
  return most;
}

}  // namespace

void RmsNormOnDevice(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& y) {
  const c10::DeviceGuard device(x.device());
  CheckLaunch("rms_norm", cuda::RmsNorm(x.const_data_ptr<float>(), x.size(1),
                                        gamma.defined() ? gamma.const_data_ptr<float>() : nullptr,
                                        static_cast<float>(eps), x.size(0), x.size(1),
                                        y.mutable_data_ptr<float>(), y.size(1), CurrentStream(x)));
}

void RopeOnDevice(at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                  double attention_scaling) {
  const c10::DeviceGuard device(x.device());
  const int heads = static_cast<int>(x.size(1)), head_dim = static_cast<int>(x.size(2));
  CheckLaunch("rope",
              cuda::Rope(x.mutable_data_ptr<float>(), x.size(1) * x.size(2),
                         positions.const_data_ptr<std::int32_t>(), inv_freq.const_data_ptr<float>(),
                         static_cast<float>(attention_scaling), heads, head_dim, x.size(0),
                         CurrentStream(x)));
}

void SiluMulOnDevice(const at::Tensor& a, const at::Tensor& b, std::int64_t n, std::int64_t d,
                     at::Tensor& y) {
  const c10::DeviceGuard device(a.device());
  CheckLaunch("silu_mul", cuda::SiluMul(a.const_data_ptr<float>(), d, b.const_data_ptr<float>(), d,
                                        n, d, y.mutable_data_ptr<float>(), d, CurrentStream(a)));
}

void AddOnDevice(const at::Tensor& a, std::int64_t n, std::int64_t d, at::Tensor& y) {
  const c10::DeviceGuard device(a.device());
  CheckLaunch("add", cuda::AddRows(y.mutable_data_ptr<float>(), d, a.const_data_ptr<float>(), d, n,
                                   d, CurrentStream(a)));
}

void EmbeddingOnDevice(const at::Tensor& table, DType dtype, const at::Tensor& ids, at::Tensor& y) {
  const c10::DeviceGuard device(table.device());
  CheckLaunch("embedding",
              cuda::EmbeddingRows(table.const_data_ptr(), dtype, table.size(0), table.size(1),
                                  ids.const_data_ptr<std::int32_t>(), ids.size(0),
                                  y.mutable_data_ptr<float>(), y.size(1), CurrentStream(table)));
}

void ArgMaxOnDevice(const at::Tensor& logits, at::Tensor& tokens) {
  const c10::DeviceGuard device(logits.device());
  const std::int64_t n = logits.size(0), d = logits.size(1);
  const ReducePlan plan = PlanReduce(n, d, SmCount(logits));
  at::Tensor workspace =
      at::empty({static_cast<std::int64_t>(plan.workspace_floats)}, logits.options());
  CheckLaunch("arg_max",
              cuda::ArgMax(logits.const_data_ptr<float>(), d, n, d, plan,
                           workspace.mutable_data_ptr<float>(),
                           tokens.mutable_data_ptr<std::int32_t>(), CurrentStream(logits)));
}

void SurprisalOnDevice(const at::Tensor& logits, const at::Tensor& targets, at::Tensor& surprisal,
                       at::Tensor& lse) {
  const c10::DeviceGuard device(logits.device());
  const std::int64_t n = logits.size(0), d = logits.size(1);
  const ReducePlan plan = PlanReduce(n, d, SmCount(logits));
  at::Tensor workspace =
      at::empty({static_cast<std::int64_t>(plan.workspace_floats)}, logits.options());
  at::Tensor state = at::empty({n, 3}, logits.options());
  const cuda::Stream stream = CurrentStream(logits);
  CheckLaunch("surprisal", cuda::SurprisalChunk(logits.const_data_ptr<float>(), d, n, d, 0,
                                                targets.const_data_ptr<std::int32_t>(), plan,
                                                workspace.mutable_data_ptr<float>(),
                                                state.mutable_data_ptr<float>(), stream));
  CheckLaunch("surprisal", cuda::SurprisalFinish(state.const_data_ptr<float>(), n,
                                                 surprisal.mutable_data_ptr<float>(),
                                                 lse.mutable_data_ptr<float>(), stream));
}

void QuantizeOnDevice(const at::Tensor& x, CodeType type, at::Tensor& codes, at::Tensor& scales) {
  const c10::DeviceGuard device(x.device());
  CheckLaunch(
      "quantize_rows",
      cuda::QuantizeRows(x.const_data_ptr<float>(), x.size(1), x.size(0), x.size(1), type,
                         codes.mutable_data_ptr<std::uint8_t>(),
                         static_cast<std::uint16_t*>(scales.mutable_data_ptr()), CurrentStream(x)));
}

void DequantizeOnDevice(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                        at::Tensor& y) {
  const c10::DeviceGuard device(codes.device());
  CheckLaunch("dequantize_rows",
              cuda::DequantizeRows(codes.const_data_ptr<std::uint8_t>(), HalfBits(scales),
                                   y.size(0), y.size(1), type, y.mutable_data_ptr<float>(),
                                   y.size(1), CurrentStream(codes)));
}

void EmbeddingCodesOnDevice(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                            const at::Tensor& ids, at::Tensor& y) {
  const c10::DeviceGuard device(codes.device());
  CheckLaunch("embedding_codes",
              cuda::EmbeddingCodes(codes.const_data_ptr<std::uint8_t>(), HalfBits(scales), type,
                                   codes.size(0), y.size(1), ids.const_data_ptr<std::int32_t>(),
                                   ids.size(0), y.mutable_data_ptr<float>(), y.size(1),
                                   CurrentStream(codes)));
}

void LinearCodesOnDevice(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                         CodeType type, at::Tensor& y) {
  const c10::DeviceGuard device(x.device());
  const std::int64_t n = x.size(0), in = x.size(1), out = y.size(1);
  for (std::int64_t r = 0; r < n; r += kMaxCodeProductRows) {
    CheckLaunch("linear_codes",
                cuda::MultiplyCodes(codes.const_data_ptr<std::uint8_t>(), HalfBits(scales), type,
                                    out, in, x.const_data_ptr<float>() + r * in, in,
                                    std::min<std::int64_t>(n - r, kMaxCodeProductRows),
                                    y.mutable_data_ptr<float>() + r * out, out, CurrentStream(x)));
  }
}

at::Tensor PagesOnDevice(const KvPageLayout& layout, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& positions) {
  const c10::DeviceGuard device(k.device());
  const std::int64_t rows = k.size(0), heads = k.size(1);
  const std::int64_t pages = (rows + kPageRows - 1) / kPageRows;
  const std::int64_t bytes = static_cast<std::int64_t>(layout.page_bytes());
  at::Tensor slab = at::zeros({heads * pages * bytes}, k.options().dtype(at::kByte));
  std::byte* base = reinterpret_cast<std::byte*>(slab.mutable_data_ptr<std::uint8_t>());
  std::vector<std::byte*> table;
  std::vector<std::int32_t> page_rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    page_rows.push_back(static_cast<std::int32_t>(r % kPageRows));
    for (std::int64_t h = 0; h < heads; ++h) {
      table.push_back(base + (h * pages + r / kPageRows) * bytes);
    }
  }
  const at::Tensor device_table = Upload(table, k), device_rows = Upload(page_rows, k);
  cuda::KvRowsArgs args;
  // The kernel only reads them.
  args.k = const_cast<float*>(k.const_data_ptr<float>());
  args.v = const_cast<float*>(v.const_data_ptr<float>());
  args.ldk = args.ldv = heads * layout.head_dim;
  args.pages = As<std::byte*>(device_table);
  args.rows = As<std::int32_t>(device_rows);
  args.n = rows;
  args.kv_heads = static_cast<int>(heads);
  CheckLaunch("paged_kv", cuda::WriteKvRows(layout, args, positions.const_data_ptr<std::int32_t>(),
                                            {}, CurrentStream(k)));
  return slab;
}

void AttentionOnDevice(const DeviceTask& task, at::Tensor& out, at::Tensor& lse) {
  const c10::DeviceGuard device(task.q.device());
  const std::int32_t q_begin[] = {0, static_cast<std::int32_t>(task.q.size(0))};
  const AttentionPlan plan = PlanAttention({task.shape.q_heads, task.shape.kv_heads,
                                            task.shape.head_dim, MaxPages(task), SmCount(task.q)},
                                           q_begin, 1);
  const at::Tensor segments = Upload(task.segments, task.q),
                   offsets = Upload(task.segment_offsets, task.q),
                   tiles = Upload(plan.tiles, task.q);
  at::Tensor workspace =
      at::empty({static_cast<std::int64_t>(plan.workspace_floats)}, task.q.options());
  cuda::AttentionArgs args;
  args.q = task.q.const_data_ptr<float>();
  args.ldq = args.ldo = task.q.size(1) * task.q.size(2);
  args.q_positions = task.q_positions.const_data_ptr<std::int32_t>();
  args.segments = As<KvSegment>(segments);
  args.segment_offsets = As<std::int32_t>(offsets);
  args.tiles = As<AttentionTile>(tiles);
  args.out = out.mutable_data_ptr<float>();
  args.lse = lse.mutable_data_ptr<float>();
  args.workspace = workspace.mutable_data_ptr<float>();
  CheckLaunch("attention",
              cuda::Attention(task.shape, task.layout, plan, args, CurrentStream(task.q)));
}

void KeyMassOnDevice(const DeviceTask& task, const at::Tensor& lse, at::Tensor& mass) {
  const c10::DeviceGuard device(task.q.device());
  std::vector<std::int32_t> rows;
  for (const KvSegment& s : task.segments) rows.push_back(s.num_rows);
  const KeyMassPlan plan = PlanKeyMass(task.shape.head_dim, task.shape.kv_heads, rows.data(),
                                       task.segment_offsets.data());
  const at::Tensor segments = Upload(task.segments, task.q),
                   offsets = Upload(task.segment_offsets, task.q);
  AttentionTask args;
  args.q = task.q.const_data_ptr<float>();
  args.ldq = task.q.size(1) * task.q.size(2);
  args.q_positions = task.q_positions.const_data_ptr<std::int32_t>();
  args.num_q = static_cast<std::int32_t>(task.q.size(0));
  args.segments = As<KvSegment>(segments);
  args.segment_offsets = As<std::int32_t>(offsets);
  // The kernel only reads it.
  args.lse = const_cast<float*>(lse.const_data_ptr<float>());
  CheckLaunch("key_mass", cuda::KeyMass(task.shape, task.layout, plan, args,
                                        mass.mutable_data_ptr<float>(), CurrentStream(task.q)));
}

int CudaDevices() { return cuda::DeviceCount(); }

}  // namespace baton::torch_ops
