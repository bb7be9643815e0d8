// Attention, key mass and the ops on KV pages.
#include <algorithm>
#include <memory>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/kv_write.h"
#include "tests/kernels/cuda/check.h"

namespace baton::check {
namespace {

std::vector<std::int32_t> Range(std::int32_t begin, std::int32_t n, std::int32_t step = 1) {
  std::vector<std::int32_t> v(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = begin + i * step;
  return v;
}

// Pages of one segment on both sides. Rows that are not written stay NaN.
class Segment {
 public:
  Segment(const KvPageLayout& layout, const std::vector<std::int32_t>& positions, unsigned seed,
          bool with_bias, bool sorted)
      : rows_(static_cast<std::int32_t>(positions.size())),
        sorted_(sorted),
        pages_((positions.size() + kPageRows - 1) / kPageRows),
        host_(pages_ * layout.page_bytes(), std::byte{0xff}),
        bias_(with_bias ? Normal(positions.size(), seed + 1, 2.0f) : std::vector<float>()) {
    const std::size_t hd = static_cast<std::size_t>(layout.head_dim);
    const std::vector<float> data = Normal(2 * positions.size() * hd, seed);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      WriteKvRow(layout, &host_[i / kPageRows * layout.page_bytes()],
                 static_cast<int>(i % kPageRows), &data[2 * i * hd], &data[(2 * i + 1) * hd],
                 positions[i]);
    }
    for (const float x : data) max_ = std::max(max_, std::fabs(x));
    device_ = std::make_unique<DeviceArray<std::byte>>(host_);
    device_bias_ = std::make_unique<DeviceArray<float>>(bias_);
    std::vector<const std::byte*> table;
    for (std::size_t i = 0; i < pages_; ++i) {
      host_table_.push_back(&host_[i * layout.page_bytes()]);
      table.push_back(device_->get() + i * layout.page_bytes());
    }
    device_table_ = std::make_unique<DeviceArray<const std::byte*>>(table);
  }

  KvSegment Host() const {
    return {host_table_.data(), rows_, bias_.empty() ? nullptr : bias_.data(), sorted_};
  }
  KvSegment Device() const {
    return {device_table_->get(), rows_, bias_.empty() ? nullptr : device_bias_->get(), sorted_};
  }
  int pages() const { return static_cast<int>(pages_); }
  std::int32_t rows() const { return rows_; }
  float max() const { return max_; }

 private:
  std::int32_t rows_;
  bool sorted_;
  std::size_t pages_;
  std::vector<std::byte> host_;
  std::vector<float> bias_;
  float max_ = 0;
  std::vector<const std::byte*> host_table_;
  std::unique_ptr<DeviceArray<std::byte>> device_;
  std::unique_ptr<DeviceArray<float>> device_bias_;
  std::unique_ptr<DeviceArray<const std::byte*>> device_table_;
};

// The emulator takes all sizes in fp32 only: what the other dtypes have of their own are loads.
std::vector<int> Sizes(DType dtype, std::vector<int> quick, std::vector<int> all) {
  return Quick() || (kEmulated && dtype != DType::kF32) ? quick : all;
}

// A batch of tasks on both sides.
class Batch {
 public:
  Batch(int q_heads, int kv_heads, int head_dim, DType dtype, int window = 0)
      : shape_{q_heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)), window},
        layout_{head_dim, dtype},
        ldq_(q_heads * head_dim + 4),
        ldo_(q_heads * head_dim + 2) {}

  // Segments of the task's heads follow, all of head 0 first.
  void Task(const std::vector<std::int32_t>& q_positions) {
    positions_.insert(positions_.end(), q_positions.begin(), q_positions.end());
    q_begin_.push_back(static_cast<std::int32_t>(positions_.size()));
  }
  void Add(const std::vector<std::int32_t>& positions, bool bias = false, bool sorted = true) {
    segments_.emplace_back(layout_, positions, 100 + static_cast<unsigned>(segments_.size()) * 7,
                           bias, sorted);
  }
  void EndHead() { offsets_.push_back(static_cast<std::int32_t>(segments_.size())); }
  void SameForAllHeads(const std::vector<std::int32_t>& positions, bool bias = false) {
    for (int h = 0; h < shape_.kv_heads; ++h) {
      Add(positions, bias);
      EndHead();
    }
  }

  // Compares Attention, or KeyMass of every task.
  void RunAttention(Report& report, int sm_count) const { Run(report, sm_count, false); }
  void RunKeyMass(Report& report) const { Run(report, 1, true); }

 private:
  struct Host {
    std::vector<float> q, out, lse;
    std::vector<KvSegment> segments;
    std::vector<AttentionTask> tasks;
  };

  std::size_t Heads() const { return static_cast<std::size_t>(shape_.kv_heads); }

  Host Reference(Executor& executor) const {
    Host h;
    const std::size_t n = positions_.size();
    h.q = Normal(n * static_cast<std::size_t>(ldq_), 5, 1.5f);
    h.out.assign(n * static_cast<std::size_t>(ldo_), 77.0f);
    h.lse.assign(n * static_cast<std::size_t>(shape_.q_heads), 77.0f);
    for (const Segment& s : segments_) h.segments.push_back(s.Host());
    for (std::size_t t = 0; t + 1 < q_begin_.size(); ++t) {
      const std::int64_t first = q_begin_[t];
      AttentionTask task;
      task.q = h.q.data() + first * ldq_;
      task.ldq = ldq_;
      task.q_positions = positions_.data() + first;
      task.num_q = q_begin_[t + 1] - q_begin_[t];
      task.segments = h.segments.data();
      task.segment_offsets = &offsets_[t * Heads()];
      task.out = h.out.data() + first * ldo_;
      task.ldo = ldo_;
      task.lse = h.lse.data() + first * shape_.q_heads;
      h.tasks.push_back(task);
    }
    baton::Attention(shape_, layout_, h.tasks.data(), static_cast<std::int64_t>(h.tasks.size()),
                     executor);
    return h;
  }

  void Run(Report& report, int sm_count, bool mass) const {
    const std::unique_ptr<Executor> pool = MakeThreadPool(2);
    const Host want = Reference(*pool);
    const DeviceArray<float> q(want.q);
    const DeviceArray<std::int32_t> positions(positions_), offsets(offsets_);
    std::vector<KvSegment> views;
    for (const Segment& s : segments_) views.push_back(s.Device());
    const DeviceArray<KvSegment> segments(views);
    if (mass) {
      const DeviceArray<float> lse(want.lse);
      for (std::size_t t = 0; t < want.tasks.size(); ++t) {
        AttentionTask task = want.tasks[t];
        task.q = q.get() + q_begin_[t] * ldq_;
        task.q_positions = positions.get() + q_begin_[t];
        task.segments = segments.get();
        task.segment_offsets = offsets.get() + t * Heads();
        task.lse = lse.get() + q_begin_[t] * shape_.q_heads;
        CompareMass(report, want.tasks[t], task, *pool);
      }
      return;
    }
    AttentionSizes sizes{shape_.q_heads, shape_.kv_heads, shape_.head_dim, MaxPages(), sm_count};
    const AttentionPlan plan =
        PlanAttention(sizes, q_begin_.data(), static_cast<int>(q_begin_.size()) - 1);
    const DeviceArray<AttentionTile> tiles(plan.tiles);
    const DeviceArray<float> out(std::vector<float>(want.out.size(), 77.0f)),
        lse(std::vector<float>(want.lse.size(), 77.0f));
    const DeviceArray<float> workspace(std::vector<float>(plan.workspace_floats, std::nanf("")));
    cuda::AttentionArgs args;
    args.q = q.get();
    args.ldq = ldq_;
    args.q_positions = positions.get();
    args.segments = segments.get();
    args.segment_offsets = offsets.get();
    args.tiles = tiles.get();
    args.out = out.get();
    args.ldo = ldo_;
    args.lse = lse.get();
    args.workspace = workspace.get();
    report.Ok(cuda::Attention(shape_, layout_, plan, args, nullptr));
    CompareOutputs(report, want, out.ToHost(), lse.ToHost());
  }

  void CompareOutputs(Report& report, const Host& want, const std::vector<float>& out,
                      const std::vector<float>& lse) const {
    float max_v = 0;
    for (const Segment& s : segments_) max_v = std::max(max_v, s.max());
    for (std::size_t i = 0; i < out.size(); ++i) {
      report.Near("out", i, out[i], want.out[i], 4e-6 * max_v);
    }
    for (std::size_t i = 0; i < lse.size(); ++i) {
      report.Near("lse", i, lse[i], want.lse[i], 2e-6 * (1 + std::fabs(want.lse[i])));
    }
  }

  void CompareMass(Report& report, const AttentionTask& host, const AttentionTask& device,
                   Executor& executor) const {
    std::vector<std::int32_t> rows;
    std::size_t total = 0;
    for (const Segment& s : segments_) rows.push_back(s.rows());
    for (std::int32_t i = host.segment_offsets[0]; i < host.segment_offsets[shape_.kv_heads]; ++i) {
      total += static_cast<std::size_t>(rows[static_cast<std::size_t>(i)]);
    }
    std::vector<float> want(total, 77.0f);
    baton::KeyMass(shape_, layout_, host, want.data(), executor);
    const KeyMassPlan plan =
        PlanKeyMass(shape_.head_dim, shape_.kv_heads, rows.data(), host.segment_offsets);
    const DeviceArray<float> mass(std::vector<float>(total, 77.0f));
    report.Ok(cuda::KeyMass(shape_, layout_, plan, device, mass.get(), nullptr));
    const std::vector<float> got = mass.ToHost();
    for (std::size_t i = 0; i < total; ++i) {
      report.Near("mass", i, got[i], want[i], 4e-5 * want[i] + 2e-9);
    }
  }

  int MaxPages() const {
    int most = 0;
    for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
      int pages = 0;
      for (std::int32_t s = offsets_[i]; s < offsets_[i + 1]; ++s) {
        pages += segments_[static_cast<std::size_t>(s)].pages();
      }
      most = std::max(most, pages);
    }
    return most;
  }

  AttentionShape shape_;
  KvPageLayout layout_;
  std::int64_t ldq_, ldo_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> q_begin_ = {0};
  std::vector<Segment> segments_;
  std::vector<std::int32_t> offsets_ = {0};
};

// Two heads with other segments each: summary rows with a bias, full rows, an empty one.
void AddMixed(Batch* b) {
  b->Add(Range(3, 21, 5), true);
  b->Add(Range(100, 83));
  b->EndHead();
  b->Add(Range(0, 7), true);
  b->Add({});
  b->Add(Range(90, 130), true);
  b->EndHead();
}

// Calls run(batch, number of multiprocessors to plan for) for each case.
template <typename Run>
void ForEachBatch(Report& report, DType dtype, const Run& run) {
  for (int head_dim : Sizes(dtype, {24, 136}, {8, 24, 64, 80, 128, 256})) {
    report.Case("mixed segments, head_dim " + std::to_string(head_dim));
    Batch b(6, 2, head_dim, dtype);
    b.Task({150});  // decode
    AddMixed(&b);
    b.Task({151, 152, 153, 160, 200, 500});  // verification
    AddMixed(&b);
    b.Task({});
    AddMixed(&b);
    b.Task(Range(120, 45));  // a chunk of prefill
    AddMixed(&b);
    run(b, 8);
  }
  for (int n : Sizes(dtype, {65}, {1, 15, 16, 17, 63, 64, 65, 129})) {
    report.Case("causal prefill of " + std::to_string(n));
    Batch b(3, 1, 64, dtype);
    b.Task(Range(0, n));
    b.SameForAllHeads(Range(0, n));
    run(b, 4);
  }
  for (int window : Sizes(dtype, {63}, {1, 16, 63, 300})) {
    report.Case("window " + std::to_string(window));
    Batch b(4, 2, 16, dtype, window);
    b.Task({700});
    b.SameForAllHeads(Range(0, 701));
    b.Task(Range(150, 60));
    b.SameForAllHeads(Range(0, 210), true);
    run(b, 16);
  }
  for (int group : Sizes(dtype, {9}, {1, 2, 5, 8, 9, 12, 71})) {
    report.Case("group of " + std::to_string(group));
    Batch b(2 * group, 2, 32, dtype);
    b.Task({299});
    b.SameForAllHeads(Range(0, 300));
    b.Task({290, 299});
    b.SameForAllHeads(Range(0, 300));
    run(b, 32);
  }
  report.Case("unsorted rows, queries that see nothing");
  Batch b(2, 1, 32, dtype);
  std::vector<std::int32_t> shuffled;
  for (std::int32_t i = 0; i < 150; ++i) shuffled.push_back(10 + i * 37 % 150);
  b.Task({5, 40, 9, 159, 10});
  b.Add(shuffled, true, false);
  b.EndHead();
  b.Task(Range(0, 40));
  b.Add(shuffled, true, false);
  b.EndHead();
  b.Task({3});
  b.EndHead();  // no segment at all
  run(b, 16);
  if (kEmulated) return;
  report.Case("a large batch");
  Batch large(32, 8, 128, dtype);
  for (int context : {4096, 4000, 17, 2048}) {
    large.Task({context - 1});
    large.SameForAllHeads(Range(0, context));
  }
  large.Task(Range(500, 700));
  large.SameForAllHeads(Range(0, 1200));
  run(large, cuda::SmCount());
}

template <DType D>
void CheckAttention(Report& report) {
  ForEachBatch(report, D, [&](const Batch& b, int sm_count) {
    b.RunAttention(report, sm_count);
    b.RunAttention(report, 1);  // without splits
  });
}

template <DType D>
void CheckKeyMass(Report& report) {
  ForEachBatch(report, D, [&](const Batch& b, int) { b.RunKeyMass(report); });
}

// Pages of `n` rows x heads on both sides, several rows of a page in one call.
struct PagePair {
  PagePair(const KvPageLayout& layout, std::size_t pages)
      : host(pages * layout.page_bytes(), std::byte{0x5a}), device(host) {}
  std::vector<std::byte> host;
  DeviceArray<std::byte> device;
};

struct RowsCase {
  RowsCase(const KvPageLayout& layout_in, std::int64_t n_in, int heads_in)
      : layout(layout_in),
        n(n_in),
        heads(heads_in),
        page_count((n + kPageRows - 1) / kPageRows * heads),
        pages(layout, static_cast<std::size_t>(page_count)) {
    for (std::int64_t r = 0; r < n; ++r) {
      rows.push_back(static_cast<std::int32_t>((r * 5 + 3) % kPageRows));
      positions.push_back(static_cast<std::int32_t>(1000 + r));
      for (int h = 0; h < heads; ++h) {
        const std::size_t at =
            static_cast<std::size_t>(r / kPageRows * heads + h) * layout.page_bytes();
        host_pages.push_back(pages.host.data() + at);
        device_pages.push_back(pages.device.get() + at);
      }
    }
  }
  KvPageLayout layout;
  std::int64_t n;
  int heads;
  std::int64_t page_count;
  PagePair pages;
  std::vector<std::int32_t> rows, positions;
  std::vector<std::byte*> host_pages, device_pages;
};

std::vector<std::uint8_t> Bytes(const std::vector<std::byte>& b) {
  std::vector<std::uint8_t> v(b.size());
  std::memcpy(v.data(), b.data(), b.size());
  return v;
}

// k with any bits, also NaN and values beyond fp16, comes out as on the CPU.
template <DType D>
void CheckWrite(Report& report) {
  SerialExecutor serial;
  for (int head_dim : {8, 64, 128, 256}) {
    for (bool rotate : {false, true}) {
      report.Case("head_dim " + std::to_string(head_dim) + (rotate ? " with rope" : ""));
      RowsCase c({head_dim, D}, 37, 3);
      const std::int64_t width = c.heads * head_dim, ld = width + 5;
      std::vector<float> k = Normal(static_cast<std::size_t>(c.n * ld), 1, 3.0f);
      std::vector<float> v = Normal(static_cast<std::size_t>(c.n * ld), 2, 1e-6f);
      v[0] = 1e6f;
      v[1] = -INFINITY;
      std::vector<float> freq;
      for (int i = 0; i < head_dim / 2; ++i) freq.push_back(std::pow(1e4f, -2.0f * i / head_dim));
      const DeviceArray<float> dk(k), dv(v), df(freq);
      const DeviceArray<std::byte*> table(c.device_pages);
      const DeviceArray<std::int32_t> rows(c.rows), positions(c.positions);
      cuda::KvRowsArgs args{dk.get(), ld, dv.get(), ld, table.get(), rows.get(), c.n, c.heads};
      cuda::KeyRotation rotation;
      if (rotate) rotation = {df.get(), 1.25f};
      report.Ok(cuda::WriteKvRows(c.layout, args, positions.get(), rotation, nullptr));
      if (rotate) {
        baton::Rope(k.data(), ld, c.positions.data(), freq.data(), 1.25f, c.heads, head_dim, c.n,
                    serial);
      }
      for (std::int64_t r = 0; r < c.n; ++r) {
        for (int h = 0; h < c.heads; ++h) {
          const std::size_t i = static_cast<std::size_t>(r * c.heads + h);
          WriteKvRow(c.layout, c.host_pages[i], c.rows[static_cast<std::size_t>(r)],
                     &k[static_cast<std::size_t>(r * ld + h * head_dim)],
                     &v[static_cast<std::size_t>(r * ld + h * head_dim)],
                     c.positions[static_cast<std::size_t>(r)]);
        }
      }
      report.Same("page byte", Bytes(c.pages.device.ToHost()), Bytes(c.pages.host));
    }
  }
}

template <DType D>
void CheckRead(Report& report) {
  for (int head_dim : {8, 80, 256}) {
    report.Case("head_dim " + std::to_string(head_dim));
    RowsCase c({head_dim, D}, 21, 2);
    const std::int64_t width = c.heads * head_dim;
    const std::vector<float> data = Normal(static_cast<std::size_t>(c.n * width), 3);
    std::vector<float> k(data.size()), v(data.size());
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t r = 0; r < c.n; ++r) {
        for (int h = 0; h < c.heads; ++h) {
          const std::size_t i = static_cast<std::size_t>(r * c.heads + h);
          const std::size_t at = static_cast<std::size_t>(r * width + h * head_dim);
          const int row = c.rows[static_cast<std::size_t>(r)];
          if (pass == 0) {
            WriteKvRow(c.layout, c.host_pages[i], row, &data[at], &data[at], 1);
          } else {
            ReadKvRow(c.layout, c.host_pages[i], row, &k[at], &v[at]);
          }
        }
      }
    }
    const DeviceArray<std::byte> pages(c.pages.host);
    for (std::size_t i = 0; i < c.device_pages.size(); ++i) {
      c.device_pages[i] = pages.get() + (c.host_pages[i] - c.pages.host.data());
    }
    const DeviceArray<std::byte*> table(c.device_pages);
    const DeviceArray<std::int32_t> rows(c.rows);
    const DeviceArray<float> dk(data.size()), dv(data.size());
    report.Ok(cuda::ReadKvRows(
        c.layout, {dk.get(), width, dv.get(), width, table.get(), rows.get(), c.n, c.heads},
        nullptr));
    report.Same("k", dk.ToHost(), k);
    report.Same("v", dv.ToHost(), v);
  }
}

template <DType D>
void CheckCopy(Report& report) {
  for (int head_dim : {8, 24, 128}) {
    report.Case("head_dim " + std::to_string(head_dim));
    const KvPageLayout layout{head_dim, D};
    const std::vector<std::int32_t> begin = {0, 0, 3, 15, 7, 16}, end = {16, 5, 16, 16, 7, 16};
    const std::size_t n = begin.size(), stride = layout.payload_bytes();
    std::vector<std::byte> payload(n * stride);
    for (std::size_t i = 0; i < payload.size(); ++i)
      payload[i] = static_cast<std::byte>(i * 31 + i / 256);
    PagePair pages(layout, n);
    const DeviceArray<std::byte> device_payload(payload);
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < n; ++i) {
      from.push_back(device_payload.get() + i * stride);
      to.push_back(pages.device.get() + i * layout.page_bytes());
      CopyKvRows(layout, &payload[i * stride], &pages.host[i * layout.page_bytes()], begin[i],
                 end[i]);
    }
    const DeviceArray<const std::byte*> payloads(from);
    const DeviceArray<std::byte*> table(to);
    const DeviceArray<std::int32_t> b(begin), e(end);
    report.Ok(cuda::CopyKvRows(layout, payloads.get(), table.get(), b.get(), e.get(),
                               static_cast<std::int64_t>(n), nullptr));
    report.Same("page byte", Bytes(pages.device.ToHost()), Bytes(pages.host));
  }
}

template <DType D>
void AddAll(std::vector<Check>* checks) {
  const char* dtype = DTypeName(D);
  checks->push_back({"WriteKvRows", dtype, CheckWrite<D>});
  checks->push_back({"ReadKvRows", dtype, CheckRead<D>});
  checks->push_back({"CopyKvRows", dtype, CheckCopy<D>});
  checks->push_back({"Attention", dtype, CheckAttention<D>});
  checks->push_back({"KeyMass", dtype, CheckKeyMass<D>});
}

}  // namespace

std::vector<Check> AttentionChecks() {
  std::vector<Check> checks;
  AddAll<DType::kF32>(&checks);
  AddAll<DType::kBF16>(&checks);
  AddAll<DType::kF16>(&checks);
  return checks;
}

}  // namespace baton::check
