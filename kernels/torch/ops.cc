#include "kernels/torch/ops.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels/attention.h"
#include "kernels/codes.h"
#include "kernels/elementwise.h"
#include "kernels/kv_write.h"
#include "kernels/sampling.h"
#include "kernels/torch/device.h"

namespace baton::torch_ops {
namespace {

constexpr int kMaxHeadDim = 256;

// A contiguous tensor of the wanted type, or an error naming op and argument.
at::Tensor Checked(const char* op, const char* name, const at::Tensor& t, at::ScalarType type) {
  TORCH_CHECK(t.defined(), op, ": ", name, " is undefined");
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " must be dense, is ", t.layout());
  TORCH_CHECK(t.scalar_type() == type, op, ": ", name, " must be ", type, ", is ", t.scalar_type());
  return t.detach().contiguous();
}

at::Tensor CheckedShape(const char* op, const char* name, const at::Tensor& t, at::ScalarType type,
                        at::IntArrayRef shape) {
  at::Tensor c = Checked(op, name, t, type);
  TORCH_CHECK(c.sizes() == shape, op, ": ", name, " must have shape ", shape, ", has ", c.sizes());
  return c;
}

void CheckCpu(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK(t.device().is_cpu(), op, ": ", name, " must be on the CPU, is on ", t.device());
}

void CheckDevice(const char* op, const char* name, const at::Tensor& t) {
  TORCH_CHECK(t.device().is_cpu() || t.device().is_cuda(), op, ": ", name,
              " must be on the CPU or a CUDA device, is on ", t.device());
}

// `first` is the argument that decides where an op runs.
void CheckSameDevice(const char* op, const char* first, const at::Tensor& a, const char* name,
                     const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(), op, ": ", name, " is on ", b.device(), ", ", first, " on ",
              a.device());
}

void CheckHeadDim(const char* op, std::int64_t head_dim) {
  TORCH_CHECK(head_dim > 0 && head_dim % 8 == 0 && head_dim <= kMaxHeadDim, op,
              ": head_dim must be a multiple of 8 up to ", kMaxHeadDim, ", is ", head_dim);
}

DType DTypeOf(const char* op, const char* name, at::ScalarType type) {
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, op, ": ", name,
              " must be fp32, bf16 or fp16, is ", type);
  return type == at::kFloat ? DType::kF32 : type == at::kBFloat16 ? DType::kBF16 : DType::kF16;
}

// ids [n] beside the table they index.
at::Tensor CheckedIds(const char* op, const char* name, const at::Tensor& table,
                      const at::Tensor& ids) {
  const at::Tensor c = Checked(op, "ids", ids, at::kInt);
  TORCH_CHECK(c.dim() == 1, op, ": ids must be [n], has shape ", c.sizes());
  CheckSameDevice(op, name, table, "ids", c);
  return c;
}

// Any tensor's elements as rows of its last dimension.
struct Rows {
  std::int64_t n, d;
  explicit Rows(const at::Tensor& t)
      : n(t.numel() / std::max<std::int64_t>(1, t.dim() > 0 ? t.size(-1) : 1)),
        d(t.dim() > 0 ? t.size(-1) : 1) {}
};

at::Tensor CheckedLogits(const char* op, const at::Tensor& logits) {
  const at::Tensor x = Checked(op, "logits", logits, at::kFloat);
  CheckDevice(op, "logits", x);
  TORCH_CHECK(x.dim() == 2 && x.size(1) <= INT32_MAX, op, ": logits must be [n, vocab], has shape ",
              x.sizes());
  return x;
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& gamma, double eps, Executor& executor) {
  const at::Tensor in = Checked("rms_norm", "x", x, at::kFloat);
  CheckDevice("rms_norm", "x", in);
  TORCH_CHECK(in.dim() >= 1 && in.size(-1) > 0, "rms_norm: x must have a last dimension");
  const std::int64_t d = in.size(-1);
  at::Tensor g;
  if (gamma.defined()) {
    g = CheckedShape("rms_norm", "gamma", gamma, at::kFloat, {d});
    CheckSameDevice("rms_norm", "x", in, "gamma", g);
  }
  const at::Tensor rows = in.reshape({-1, d});
  at::Tensor y = at::empty_like(rows);
  if (in.device().is_cpu()) {
    baton::RmsNorm(rows.const_data_ptr<float>(), d,
                   g.defined() ? g.const_data_ptr<float>() : nullptr, static_cast<float>(eps),
                   rows.size(0), d, y.mutable_data_ptr<float>(), d, executor);
  } else {
    RmsNormOnDevice(rows, g, eps, y);
  }
  return y.reshape(in.sizes());
}

at::Tensor Rope(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                double attention_scaling, Executor& executor) {
  const at::Tensor in = Checked("rope", "x", x, at::kFloat);
  CheckDevice("rope", "x", in);
  TORCH_CHECK(in.dim() == 3, "rope: x must be [n, heads, head_dim], has shape ", in.sizes());
  const std::int64_t head_dim = in.size(2);
  TORCH_CHECK(head_dim % 2 == 0, "rope: head_dim must be even, is ", head_dim);
  const at::Tensor pos = CheckedShape("rope", "positions", positions, at::kInt, {in.size(0)});
  const at::Tensor freq = CheckedShape("rope", "inv_freq", inv_freq, at::kFloat, {head_dim / 2});
  CheckSameDevice("rope", "x", in, "positions", pos);
  CheckSameDevice("rope", "x", in, "inv_freq", freq);
  at::Tensor y = in.clone();
  if (in.device().is_cpu()) {
    baton::Rope(y.mutable_data_ptr<float>(), y.size(1) * head_dim,
                pos.const_data_ptr<std::int32_t>(), freq.const_data_ptr<float>(),
                static_cast<float>(attention_scaling), static_cast<int>(y.size(1)),
                static_cast<int>(head_dim), y.size(0), executor);
  } else {
    RopeOnDevice(y, pos, freq, attention_scaling);
  }
  return y;
}

at::Tensor SiluMul(const at::Tensor& gate, const at::Tensor& up, Executor& executor) {
  const at::Tensor a = Checked("silu_mul", "gate", gate, at::kFloat);
  CheckDevice("silu_mul", "gate", a);
  const at::Tensor b = CheckedShape("silu_mul", "up", up, at::kFloat, a.sizes());
  CheckSameDevice("silu_mul", "gate", a, "up", b);
  at::Tensor y = at::empty_like(a);
  const Rows rows(a);
  if (a.device().is_cpu()) {
    baton::SiluMul(a.const_data_ptr<float>(), rows.d, b.const_data_ptr<float>(), rows.d, rows.n,
                   rows.d, y.mutable_data_ptr<float>(), rows.d, executor);
  } else {
    SiluMulOnDevice(a, b, rows.n, rows.d, y);
  }
  return y;
}

at::Tensor Add(const at::Tensor& x, const at::Tensor& y, Executor& executor) {
  const at::Tensor a = Checked("add", "x", x, at::kFloat);
  CheckDevice("add", "x", a);
  const at::Tensor b = CheckedShape("add", "y", y, at::kFloat, a.sizes());
  CheckSameDevice("add", "x", a, "y", b);
  at::Tensor sum = a.clone();
  const Rows rows(a);
  if (a.device().is_cpu()) {
    AddRows(sum.mutable_data_ptr<float>(), rows.d, b.const_data_ptr<float>(), rows.d, rows.n,
            rows.d, executor);
  } else {
    AddOnDevice(b, rows.n, rows.d, sum);
  }
  return sum;
}

at::Tensor Embedding(const at::Tensor& table, const at::Tensor& ids) {
  TORCH_CHECK(table.defined() && table.dim() == 2, "embedding: table must be [vocab, d]");
  const DType dtype = DTypeOf("embedding", "table", table.scalar_type());
  const at::Tensor t = Checked("embedding", "table", table, table.scalar_type());
  CheckDevice("embedding", "table", t);
  const at::Tensor rows = CheckedIds("embedding", "table", t, ids);
  at::Tensor y = at::empty({rows.size(0), t.size(1)}, t.options().dtype(at::kFloat));
  if (!t.device().is_cpu()) {
    EmbeddingOnDevice(t, dtype, rows, y);
    return y;
  }
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const std::int64_t id = rows.const_data_ptr<std::int32_t>()[i];
    if (id >= 0 && id < t.size(0)) {
      y[i].copy_(t[id]);
    } else {
      y[i].fill_(NAN);
    }
  }
  return y;
}

at::Tensor ArgMax(const at::Tensor& logits) {
  const at::Tensor x = CheckedLogits("arg_max", logits);
  at::Tensor tokens = at::empty({x.size(0)}, x.options().dtype(at::kInt));
  if (!x.device().is_cpu()) {
    ArgMaxOnDevice(x, tokens);
    return tokens;
  }
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const float* row = x.const_data_ptr<float>() + i * x.size(1);
    tokens.mutable_data_ptr<std::int32_t>()[i] =
        static_cast<std::int32_t>(baton::ArgMax(row, x.size(1)));
  }
  return tokens;
}

std::vector<at::Tensor> Surprisal(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor x = CheckedLogits("surprisal", logits);
  const at::Tensor t = CheckedShape("surprisal", "targets", targets, at::kInt, {x.size(0)});
  CheckSameDevice("surprisal", "logits", x, "targets", t);
  at::Tensor surprisal = at::empty({x.size(0)}, x.options()), lse = at::empty_like(surprisal);
  if (!x.device().is_cpu()) {
    SurprisalOnDevice(x, t, surprisal, lse);
    return {surprisal, lse};
  }
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const float* row = x.const_data_ptr<float>() + i * x.size(1);
    const std::int64_t target = t.const_data_ptr<std::int32_t>()[i];
    const float total = LogSumExp(row, x.size(1));
    lse.mutable_data_ptr<float>()[i] = total;
    surprisal.mutable_data_ptr<float>()[i] =
        target >= 0 && target < x.size(1) ? total - row[target] : NAN;
  }
  return {surprisal, lse};
}

std::vector<at::Tensor> QuantizeRows(const at::Tensor& x, CodeType type, Executor& executor) {
  const at::Tensor in = Checked("quantize_rows", "x", x, at::kFloat);
  CheckDevice("quantize_rows", "x", in);
  TORCH_CHECK(in.dim() == 2 && in.size(1) % kCodeBlock == 0,
              "quantize_rows: x must be [n, d], d a ", "multiple of ", kCodeBlock, ", has shape ",
              in.sizes());
  const std::int64_t n = in.size(0), blocks = in.size(1) / kCodeBlock;
  at::Tensor codes = at::empty({n, blocks * CodeBlockBytes(type)}, in.options().dtype(at::kByte));
  at::Tensor scales = at::empty({n, blocks * CodeBlockScales(type)}, in.options().dtype(at::kHalf));
  if (in.device().is_cpu()) {
    baton::QuantizeRows(in.const_data_ptr<float>(), in.size(1), n, in.size(1), type,
                        codes.mutable_data_ptr<std::uint8_t>(),
                        static_cast<std::uint16_t*>(scales.mutable_data_ptr()), executor);
  } else {
    QuantizeOnDevice(in, type, codes, scales);
  }
  return {codes, scales};
}

namespace {

// A checked matrix of codes.
struct CodeMatrix {
  at::Tensor codes, scales;
  std::int64_t rows = 0, cols = 0;

  CodeMatrix(const char* op, const at::Tensor& c, const at::Tensor& s, CodeType type) {
    codes = Checked(op, "codes", c, at::kByte);
    CheckDevice(op, "codes", codes);
    TORCH_CHECK(codes.dim() == 2 && codes.size(1) % CodeBlockBytes(type) == 0, op,
                ": codes must be [n, blocks * ", CodeBlockBytes(type), "], has shape ",
                codes.sizes());
    rows = codes.size(0);
    const std::int64_t blocks = codes.size(1) / CodeBlockBytes(type);
    cols = blocks * kCodeBlock;
    scales = CheckedShape(op, "scales", s, at::kHalf, {rows, blocks * CodeBlockScales(type)});
    CheckSameDevice(op, "codes", codes, "scales", scales);
  }

  // Of one row, in host memory.
  const std::uint8_t* Codes(std::int64_t row) const {
    return codes.const_data_ptr<std::uint8_t>() + row * codes.size(1);
  }
  const std::uint16_t* Scales(std::int64_t row) const {
    return static_cast<const std::uint16_t*>(scales.const_data_ptr()) + row * scales.size(1);
  }
  at::Tensor Floats(std::int64_t n, std::int64_t d) const {
    return at::empty({n, d}, codes.options().dtype(at::kFloat));
  }
};

}  // namespace

at::Tensor DequantizeRows(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                          Executor& executor) {
  const CodeMatrix m("dequantize_rows", codes, scales, type);
  at::Tensor y = m.Floats(m.rows, m.cols);
  if (y.device().is_cpu()) {
    baton::DequantizeRows(m.Codes(0), m.Scales(0), m.rows, m.cols, type,
                          y.mutable_data_ptr<float>(), m.cols, executor);
  } else {
    DequantizeOnDevice(m.codes, m.scales, type, y);
  }
  return y;
}

at::Tensor EmbeddingCodes(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                          const at::Tensor& ids, Executor& executor) {
  const CodeMatrix m("embedding_codes", codes, scales, type);
  const at::Tensor rows = CheckedIds("embedding_codes", "codes", m.codes, ids);
  at::Tensor y = m.Floats(rows.size(0), m.cols);
  if (!y.device().is_cpu()) {
    EmbeddingCodesOnDevice(m.codes, m.scales, type, rows, y);
    return y;
  }
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const std::int64_t id = rows.const_data_ptr<std::int32_t>()[i];
    if (id >= 0 && id < m.rows) {
      baton::DequantizeRows(m.Codes(id), m.Scales(id), 1, m.cols, type,
                            y.mutable_data_ptr<float>() + i * m.cols, m.cols, executor);
    } else {
      y[i].fill_(NAN);
    }
  }
  return y;
}

at::Tensor LinearCodes(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                       CodeType type, Executor& executor) {
  const CodeMatrix m("linear_codes", codes, scales, type);
  const at::Tensor in = Checked("linear_codes", "x", x, at::kFloat);
  TORCH_CHECK(in.dim() == 2 && in.size(1) == m.cols, "linear_codes: x must be [n, ", m.cols,
              "], has shape ", in.sizes());
  CheckSameDevice("linear_codes", "codes", m.codes, "x", in);
  at::Tensor y = m.Floats(in.size(0), m.rows);
  if (y.device().is_cpu()) {
    MultiplyCodes(m.Codes(0), m.Scales(0), type, m.rows, m.cols, in.const_data_ptr<float>(), m.cols,
                  in.size(0), y.mutable_data_ptr<float>(), m.rows, executor);
  } else {
    LinearCodesOnDevice(in, m.codes, m.scales, type, y);
  }
  return y;
}

PackedMatrix Pack(const at::Tensor& w, DType dtype, Executor& executor) {
  TORCH_CHECK(w.defined() && w.dim() == 2, "pack: w must be [out, in]");
  CheckCpu("pack", "w", w);
  DTypeOf("pack", "w", w.scalar_type());
  const at::Tensor f = w.detach().to(at::kFloat).contiguous();
  return PackedMatrix::Pack(f.const_data_ptr<float>(), f.size(0), f.size(1), FormatOf(dtype),
                            executor);
}

at::Tensor Linear(const at::Tensor& x, const PackedMatrix& w, const at::Tensor& bias,
                  Executor& executor) {
  const at::Tensor in = Checked("linear", "x", x, at::kFloat);
  CheckCpu("linear", "x", in);
  TORCH_CHECK(in.dim() >= 1 && in.size(-1) == w.cols(), "linear: x must end in ", w.cols(),
              " features, has shape ", in.sizes());
  std::vector<std::int64_t> shape(in.sizes().begin(), in.sizes().end());
  shape.back() = w.rows();
  at::Tensor y;
  if (bias.defined()) {
    const at::Tensor b = CheckedShape("linear", "bias", bias, at::kFloat, {w.rows()});
    CheckCpu("linear", "bias", b);
    y = b.expand(shape).contiguous();
  } else {
    y = at::empty(shape, in.options());
  }
  const std::int64_t n = w.cols() > 0 ? in.numel() / w.cols() : 0;
  w.Multiply(in.const_data_ptr<float>(), w.cols(), n, y.mutable_data_ptr<float>(), w.rows(),
             bias.defined(), executor);
  return y;
}

struct PagedKv::Pages {
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  KvPageLayout layout;
  std::int32_t rows = 0;
  int kv_heads = 0;
  bool sorted = true;
  std::unique_ptr<std::byte, Free> slab;
  std::vector<std::vector<const std::byte*>> tables;  // [kv_heads][pages]
  std::vector<float> bias;                            // [rows], or empty
  // Of CUDA pages, instead of the three before: bytes, addresses [kv_heads * pages] int64, bias.
  c10::Device device = at::kCPU;
  at::Tensor device_slab, device_tables, device_bias;

  KvSegment Segment(int head) const {
    KvSegment s;
    s.num_rows = rows;
    s.sorted = sorted;
    if (device.is_cpu()) {
      s.pages = tables[static_cast<std::size_t>(head)].data();
      s.bias = bias.empty() ? nullptr : bias.data();
      return s;
    }
    const std::int64_t pages = (rows + kPageRows - 1) / kPageRows;
    s.pages =
        reinterpret_cast<const std::byte* const*>(device_tables.const_data_ptr<std::int64_t>()) +
        head * pages;
    s.bias = device_bias.defined() ? device_bias.const_data_ptr<float>() : nullptr;
    return s;
  }
};

std::int64_t PagedKv::rows() const { return pages_->rows; }
int PagedKv::kv_heads() const { return pages_->kv_heads; }
int PagedKv::head_dim() const { return pages_->layout.head_dim; }

namespace {

void FillOnDevice(const at::Tensor& k, const at::Tensor& v, const at::Tensor& positions,
                  PagedKv::Pages* p) {
  p->device_slab = PagesOnDevice(p->layout, k, v, positions);
  const std::int64_t bytes = static_cast<std::int64_t>(p->layout.page_bytes());
  const std::int64_t count = p->device_slab.numel() / bytes;
  p->device_tables = at::arange(count, p->device_slab.options().dtype(at::kLong)) * bytes +
                     reinterpret_cast<std::int64_t>(p->device_slab.const_data_ptr<std::uint8_t>());
  if (p->rows > 1) {
    p->sorted = positions.slice(0, 1).ge(positions.slice(0, 0, -1)).all().item<bool>();
  }
}

}  // namespace

PagedKv PagedKv::Create(const at::Tensor& k, const at::Tensor& v, const at::Tensor& positions,
                        const at::Tensor& bias, DType dtype) {
  const at::Tensor kc = Checked("paged_kv", "k", k, at::kFloat);
  TORCH_CHECK(kc.dim() == 3, "paged_kv: k must be [rows, kv_heads, head_dim], has shape ",
              kc.sizes());
  CheckHeadDim("paged_kv", kc.size(2));
  TORCH_CHECK(kc.size(0) <= INT32_MAX - kPageRows, "paged_kv: too many rows: ", kc.size(0));
  const at::Tensor vc = CheckedShape("paged_kv", "v", v, at::kFloat, kc.sizes());
  const at::Tensor pos = CheckedShape("paged_kv", "positions", positions, at::kInt, {kc.size(0)});
  CheckDevice("paged_kv", "k", kc);
  CheckSameDevice("paged_kv", "k", kc, "v", vc);
  CheckSameDevice("paged_kv", "k", kc, "positions", pos);
  auto p = std::make_shared<Pages>();
  p->layout = {static_cast<int>(kc.size(2)), dtype};
  p->rows = static_cast<std::int32_t>(kc.size(0));
  p->kv_heads = static_cast<int>(kc.size(1));
  p->device = kc.device();
  at::Tensor b;
  if (bias.defined()) {
    b = CheckedShape("paged_kv", "bias", bias, at::kFloat, {kc.size(0)});
    CheckSameDevice("paged_kv", "k", kc, "bias", b);
  }
  if (!kc.device().is_cpu()) {
    p->device_bias = b;
    FillOnDevice(kc, vc, pos, p.get());
    return PagedKv(std::move(p));
  }
  if (b.defined()) {
    p->bias.assign(b.const_data_ptr<float>(), b.const_data_ptr<float>() + p->rows);
  }
  const std::size_t pages = static_cast<std::size_t>((p->rows + kPageRows - 1) / kPageRows);
  const std::size_t bytes = p->layout.page_bytes();
  const std::size_t heads = static_cast<std::size_t>(p->kv_heads);
  if (pages * heads > 0) {
    p->slab.reset(static_cast<std::byte*>(std::aligned_alloc(64, pages * heads * bytes)));
    TORCH_CHECK(p->slab != nullptr, "paged_kv: out of memory");
  }
  const std::int32_t* at_position = pos.const_data_ptr<std::int32_t>();
  for (std::int32_t r = 1; r < p->rows; ++r) p->sorted &= at_position[r - 1] <= at_position[r];
  for (std::size_t h = 0; h < heads; ++h) {
    auto& table = p->tables.emplace_back();
    for (std::size_t i = 0; i < pages; ++i)
      table.push_back(p->slab.get() + (h * pages + i) * bytes);
    for (std::int32_t r = 0; r < p->rows; ++r) {
      const std::size_t row = static_cast<std::size_t>(r);
      const std::size_t from = (row * heads + h) * static_cast<std::size_t>(p->layout.head_dim);
      WriteKvRow(p->layout, p->slab.get() + (h * pages + row / kPageRows) * bytes, r % kPageRows,
                 kc.const_data_ptr<float>() + from, vc.const_data_ptr<float>() + from,
                 at_position[r]);
    }
  }
  return PagedKv(std::move(p));
}

namespace {

// A checked call: tensors kept alive, the task pointing into them.
struct Call {
  at::Tensor q, positions;
  AttentionShape shape;
  KvPageLayout layout;
  std::vector<KvSegment> segments;
  std::vector<std::int32_t> offsets;
  AttentionTask task;

  Call(const char* op, const at::Tensor& q_in, const at::Tensor& q_positions,
       const std::vector<PagedKv>& kv, const AttentionOptions& options) {
    q = Checked(op, "q", q_in, at::kFloat);
    TORCH_CHECK(q.dim() == 3, op, ": q must be [n, q_heads, head_dim], has shape ", q.sizes());
    CheckDevice(op, "q", q);
    positions = CheckedShape(op, "q_positions", q_positions, at::kInt, {q.size(0)});
    CheckSameDevice(op, "q", q, "q_positions", positions);
    CheckHeadDim(op, q.size(2));
    shape.q_heads = static_cast<int>(q.size(1));
    shape.head_dim = static_cast<int>(q.size(2));
    shape.kv_heads = kv.empty() ? shape.q_heads : kv[0].kv_heads();
    layout = kv.empty() ? KvPageLayout{shape.head_dim, DType::kF32} : kv[0].pages().layout;
    TORCH_CHECK(shape.kv_heads > 0 && shape.q_heads % shape.kv_heads == 0, op, ": ", shape.kv_heads,
                " kv heads do not divide ", shape.q_heads, " query heads");
    TORCH_CHECK(layout.head_dim == shape.head_dim, op, ": q has head_dim ", shape.head_dim,
                ", the segments ", layout.head_dim);
    for (const PagedKv& s : kv) {
      TORCH_CHECK(s.kv_heads() == shape.kv_heads && s.pages().layout == layout, op,
                  ": segments differ in heads, head_dim or dtype");
      TORCH_CHECK(s.pages().device == q.device(), op, ": a segment is on ", s.pages().device,
                  ", q on ", q.device());
    }
    shape.scale = static_cast<float>(
        options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(2))));
    TORCH_CHECK(options.window >= 0, op, ": window must be at least 0 (none), is ", options.window);
    shape.window = options.window;
    offsets.push_back(0);
    for (int h = 0; h < shape.kv_heads; ++h) {
      for (const PagedKv& s : kv) segments.push_back(s.pages().Segment(h));
      offsets.push_back(static_cast<std::int32_t>(segments.size()));
    }
    task.q = q.const_data_ptr<float>();
    task.ldq = q.size(1) * q.size(2);
    task.q_positions = positions.const_data_ptr<std::int32_t>();
    task.num_q = static_cast<std::int32_t>(q.size(0));
    task.segments = segments.data();
    task.segment_offsets = offsets.data();
    task.ldo = task.ldq;
  }

  DeviceTask OnDevice() const { return {shape, layout, segments, offsets, q, positions}; }
};

}  // namespace

std::vector<at::Tensor> Attention(const at::Tensor& q, const at::Tensor& q_positions,
                                  const std::vector<PagedKv>& segments,
                                  const AttentionOptions& options, Executor& executor) {
  Call call("attention", q, q_positions, segments, options);
  at::Tensor out = at::empty_like(call.q);
  at::Tensor lse = at::empty({call.q.size(0), call.q.size(1)}, call.q.options());
  if (!call.q.device().is_cpu()) {
    AttentionOnDevice(call.OnDevice(), out, lse);
    return {out, lse};
  }
  call.task.out = out.mutable_data_ptr<float>();
  call.task.lse = lse.mutable_data_ptr<float>();
  baton::Attention(call.shape, call.layout, &call.task, 1, executor);
  return {out, lse};
}

at::Tensor KeyMass(const at::Tensor& q, const at::Tensor& q_positions, const at::Tensor& lse,
                   const std::vector<PagedKv>& segments, const AttentionOptions& options,
                   Executor& executor) {
  Call call("key_mass", q, q_positions, segments, options);
  // The kernel only reads it.
  at::Tensor l = CheckedShape("key_mass", "lse", lse, at::kFloat, {call.q.size(0), call.q.size(1)});
  CheckSameDevice("key_mass", "q", call.q, "lse", l);
  std::int64_t rows = 0;
  for (const PagedKv& s : segments) rows += s.rows();
  at::Tensor mass = at::empty({call.shape.kv_heads, rows}, call.q.options());
  if (!call.q.device().is_cpu()) {
    KeyMassOnDevice(call.OnDevice(), l, mass);
    return mass;
  }
  call.task.lse = const_cast<float*>(l.const_data_ptr<float>());
  baton::KeyMass(call.shape, call.layout, call.task, mass.mutable_data_ptr<float>(), executor);
  return mass;
}

}  // namespace baton::torch_ops
