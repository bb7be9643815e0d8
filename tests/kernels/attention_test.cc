#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "kernels/kv_write.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

// One segment with its memory. Every page is its own allocation, filled with NaN first, so that
// reading an invalid row or beyond a page shows.
struct Segment {
  std::vector<std::unique_ptr<std::byte[]>> pages;
  std::vector<const std::byte*> pointers;
  std::vector<std::int32_t> positions;
  std::vector<float> bias;
  bool sorted = true;

  KvSegment view() const {
    KvSegment s;
    s.pages = pointers.data();
    s.num_rows = static_cast<std::int32_t>(positions.size());
    s.bias = bias.empty() ? nullptr : bias.data();
    s.sorted = sorted;
    return s;
  }
};

Segment MakeSegment(const KvPageLayout& layout, const std::vector<std::int32_t>& positions,
                    unsigned seed, bool with_bias = false) {
  Segment s;
  s.positions = positions;
  const std::size_t hd = static_cast<std::size_t>(layout.head_dim);
  const auto data = RandomFloats(2 * positions.size() * hd, seed);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (i % kPageRows == 0) {
      s.pages.push_back(std::make_unique<std::byte[]>(layout.page_bytes()));
      std::memset(s.pages.back().get(), 0xff, layout.page_bytes());
      s.pointers.push_back(s.pages.back().get());
    }
    WriteKvRow(layout, s.pages.back().get(), static_cast<int>(i % kPageRows), &data[2 * i * hd],
               &data[(2 * i + 1) * hd], positions[i]);
  }
  if (with_bias) s.bias = RandomFloats(positions.size(), seed + 1000, 2.0f);
  return s;
}

std::vector<std::int32_t> Range(std::int32_t begin, std::int32_t n, std::int32_t step = 1) {
  std::vector<std::int32_t> v(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = begin + i * step;
  return v;
}

// A task with all it points to.
struct Problem {
  AttentionShape shape;
  KvPageLayout layout;
  std::vector<Segment> segments;
  std::vector<std::int32_t> offsets;
  std::vector<KvSegment> views;
  std::vector<float> q;
  std::vector<std::int32_t> q_positions;
  std::int64_t ldq = 0, ldo = 0;

  Problem(int q_heads, int kv_heads, int head_dim, DType dtype) : layout{head_dim, dtype} {
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    ldq = q_heads * head_dim + 4;
    ldo = q_heads * head_dim + 2;
  }
  void Queries(std::vector<std::int32_t> positions, unsigned seed) {
    q_positions = std::move(positions);
    q = RandomFloats(q_positions.size() * static_cast<std::size_t>(ldq), seed, 1.5f);
  }
  // Segments are listed head by head; per_head[h] of them belong to head h.
  void Finish(const std::vector<int>& per_head) {
    offsets = {0};
    for (int n : per_head) offsets.push_back(offsets.back() + n);
    for (const Segment& s : segments) views.push_back(s.view());
  }
  AttentionTask Task(std::vector<float>* out, std::vector<float>* lse, std::int32_t q_begin = 0,
                     std::int32_t q_end = -1) const {
    AttentionTask t;
    if (q_end < 0) q_end = static_cast<std::int32_t>(q_positions.size());
    t.num_q = q_end - q_begin;
    t.q = q.data() + q_begin * ldq;
    t.ldq = ldq;
    t.q_positions = q_positions.data() + q_begin;
    t.segments = views.data();
    t.segment_offsets = offsets.data();
    out->assign(static_cast<std::size_t>(t.num_q * ldo), 77.0f);
    lse->assign(static_cast<std::size_t>(t.num_q * shape.q_heads), 77.0f);
    t.out = out->data();
    t.ldo = ldo;
    t.lse = lse->data();
    return t;
  }
};

struct Dense {
  std::vector<double> out, lse, mass;
  double max_v = 0;  // largest |v| of any row: the scale of the outputs' tolerance
};

// The dense softmax in float64, straight from the definition.
Dense Reference(const Problem& p) {
  Dense d;
  const int group = p.shape.q_heads / p.shape.kv_heads, hd = p.shape.head_dim;
  const std::size_t n = p.q_positions.size();
  d.out.assign(n * static_cast<std::size_t>(p.shape.q_heads * hd), 0.0);
  d.lse.assign(n * static_cast<std::size_t>(p.shape.q_heads), -kInf);
  for (int h = 0; h < p.shape.kv_heads; ++h) {
    std::vector<std::vector<float>> keys, values;
    std::vector<std::int32_t> pos;
    std::vector<float> bias;
    for (std::int32_t i = p.offsets[static_cast<std::size_t>(h)];
         i < p.offsets[static_cast<std::size_t>(h) + 1]; ++i) {
      const Segment& s = p.segments[static_cast<std::size_t>(i)];
      for (std::size_t r = 0; r < s.positions.size(); ++r) {
        std::vector<float> k(static_cast<std::size_t>(hd)), v(static_cast<std::size_t>(hd));
        ReadKvRow(p.layout, s.pages[r / 16].get(), static_cast<int>(r % 16), k.data(), v.data());
        for (float x : v) d.max_v = std::max(d.max_v, std::fabs(static_cast<double>(x)));
        keys.push_back(k);
        values.push_back(v);
        pos.push_back(s.positions[r]);
        bias.push_back(s.bias.empty() ? 0.0f : s.bias[r]);
      }
    }
    std::vector<double> mass(keys.size(), 0.0);
    for (std::size_t r = 0; r < n; ++r) {
      for (int g = 0; g < group; ++g) {
        const int head = h * group + g;
        const float* q =
            &p.q[r * static_cast<std::size_t>(p.ldq) + static_cast<std::size_t>(head * hd)];
        std::vector<double> score(keys.size(), -kInf);
        double max = -kInf;
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const std::int32_t ahead = p.q_positions[r] - pos[j];
          if (ahead < 0 || (p.shape.window > 0 && ahead >= p.shape.window)) continue;
          double dot = 0;
          for (int i = 0; i < hd; ++i)
            dot += static_cast<double>(q[i]) * keys[j][static_cast<std::size_t>(i)];
          score[j] = dot * p.shape.scale + bias[j];
          max = std::max(max, score[j]);
        }
        if (max == -kInf) continue;
        double sum = 0;
        for (double s : score) sum += std::exp(s - max);
        d.lse[r * static_cast<std::size_t>(p.shape.q_heads) + static_cast<std::size_t>(head)] =
            max + std::log(sum);
        for (std::size_t j = 0; j < keys.size(); ++j) {
          const double w = std::exp(score[j] - max) / sum;
          mass[j] += w;
          for (int i = 0; i < hd; ++i) {
            d.out[(r * static_cast<std::size_t>(p.shape.q_heads) + static_cast<std::size_t>(head)) *
                      static_cast<std::size_t>(hd) +
                  static_cast<std::size_t>(i)] += w * values[j][static_cast<std::size_t>(i)];
          }
        }
      }
    }
    d.mass.insert(d.mass.end(), mass.begin(), mass.end());
  }
  return d;
}

void ExpectDense(const Problem& p, Executor& executor) {
  const Dense want = Reference(p);
  std::vector<float> out, lse;
  const AttentionTask task = p.Task(&out, &lse);
  Attention(p.shape, p.layout, &task, 1, executor);
  const std::int64_t width = p.shape.q_heads * p.shape.head_dim;
  for (std::int64_t r = 0; r < task.num_q; ++r) {
    for (std::int64_t i = 0; i < p.ldo; ++i) {
      const float got = out[static_cast<std::size_t>(r * p.ldo + i)];
      if (i >= width) {
        ASSERT_EQ(got, 77.0f) << "wrote beyond its row";
      } else {
        ASSERT_NEAR(got, want.out[static_cast<std::size_t>(r * width + i)], 2e-6 * want.max_v)
            << r << "," << i;
      }
    }
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (want.lse[i] == -kInf) {
      ASSERT_EQ(lse[i], -kInf);
    } else {
      ASSERT_NEAR(lse[i], want.lse[i], 1e-6 * (1 + std::fabs(want.lse[i])));
    }
  }
  std::vector<float> mass(want.mass.size(), 77.0f);
  KeyMass(p.shape, p.layout, task, mass.data(), executor);
  for (std::size_t i = 0; i < mass.size(); ++i) {
    ASSERT_NEAR(mass[i], want.mass[i], 2e-5 * want.mass[i] + 1e-9) << "mass of row " << i;
  }
}

// Seam (a) and (b): two and more segments, other lengths per head, explicit positions, a bias per
// row, log-sum-exp and key masses, equal to a dense float64 softmax.
TEST(Attention, SegmentsOfUnequalLengthsEqualADenseSoftmax) {
  auto pool = MakeThreadPool(2);
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (DType dtype : kAllDTypes) {
      for (int head_dim : {8, 24, 64, 80, 128, 256}) {
        SCOPED_TRACE(testing::Message()
                     << IsaName(level) << " " << DTypeName(dtype) << " " << head_dim);
        Problem p(6, 2, head_dim, dtype);
        // Head 0: summary rows with a bias, then full rows. Head 1: three segments, one empty.
        p.segments.push_back(MakeSegment(p.layout, Range(3, 21, 5), 1, true));
        p.segments.push_back(MakeSegment(p.layout, Range(100, 83), 2));
        p.segments.push_back(MakeSegment(p.layout, Range(0, 7), 3, true));
        p.segments.push_back(MakeSegment(p.layout, {}, 4));
        p.segments.push_back(MakeSegment(p.layout, Range(90, 130), 5, true));
        p.Finish({2, 3});
        p.Queries({150, 151, 152, 153, 160, 200, 500}, 6);
        ExpectDense(p, *pool);
      }
    }
  }
}

TEST(Attention, CausalPrefillAtVectorBoundaries) {
  auto pool = MakeThreadPool(2);
  for (std::int32_t n : {1, 2, 15, 16, 17, 63, 64, 65, 129}) {
    Problem p(3, 1, 64, DType::kF32);
    p.segments.push_back(MakeSegment(p.layout, Range(0, n), 7));
    p.Finish({1});
    p.Queries(Range(0, n), 8);
    ExpectDense(p, *pool);
  }
}

TEST(Attention, SlidingWindow) {
  SerialExecutor serial;
  for (int window : {1, 5, 64, 70}) {
    for (IsaLevel level : AvailableLevels()) {
      ScopedIsa isa(level);
      Problem p(2, 2, 16, DType::kBF16);
      p.shape.window = window;
      p.segments.push_back(MakeSegment(p.layout, Range(0, 200), 9));
      p.segments.push_back(MakeSegment(p.layout, Range(0, 190), 10));
      p.Finish({1, 1});
      p.Queries(Range(150, 60), 11);
      ExpectDense(p, serial);
    }
  }
}

// A long cache: whole blocks have left the window, and segments have gaps, other lengths or none.
TEST(Attention, SlidingWindowOverALongCache) {
  SerialExecutor serial;
  for (int window : {1, 16, 63, 64, 65, 300}) {
    for (std::int32_t query : {0, 63, 64, 700, 1023, 1024, 1500, 5000}) {
      Problem p(2, 2, 16, DType::kF32);
      p.shape.window = window;
      p.segments.push_back(MakeSegment(p.layout, Range(0, 1030), 12));
      p.segments.push_back(MakeSegment(p.layout, Range(3, 130, 9), 13, true));
      p.segments.push_back(MakeSegment(p.layout, {}, 14));
      p.Finish({1, 2});
      p.Queries({query, query + 1, query + 40}, 15);
      SCOPED_TRACE(testing::Message() << "window " << window << ", query " << query);
      ExpectDense(p, serial);
    }
  }
}

TEST(Attention, UnsortedPositionsAndQueriesThatSeeNothing) {
  SerialExecutor serial;
  Problem p(2, 1, 32, DType::kF16);
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < 150; ++i) positions.push_back(10 + (i * 37) % 150);
  p.segments.push_back(MakeSegment(p.layout, positions, 12, true));
  p.segments.back().sorted = false;
  p.Finish({1});
  p.Queries({5, 40, 9, 159, 10}, 13);
  ExpectDense(p, serial);

  Problem empty(2, 1, 32, DType::kF32);
  empty.Finish({0});
  empty.Queries({0, 1}, 14);
  ExpectDense(empty, serial);
}

TEST(Attention, ExtremeBiasHidesARow) {
  SerialExecutor serial;
  Problem p(1, 1, 16, DType::kF32);
  p.segments.push_back(MakeSegment(p.layout, Range(0, 70), 15, true));
  for (std::size_t i = 0; i < 66; ++i) p.segments[0].bias[i] = -kInf;
  p.Finish({1});
  p.Queries({0, 69}, 16);
  ExpectDense(p, serial);
}

// A query alone, in chunks of any size, in a batch with other tasks, on one or two threads and on
// every instruction set gives the same bits.
TEST(Attention, BatchInvariantToTheBit) {
  SerialExecutor serial;
  auto pool = MakeThreadPool(2);
  for (DType dtype : kAllDTypes) {
    Problem p(9, 3, 64, dtype);
    for (int h = 0; h < 3; ++h) p.segments.push_back(MakeSegment(p.layout, Range(0, 210), 20 + h));
    p.Finish({1, 1, 1});
    p.Queries(Range(0, 210), 30);
    std::vector<float> want, want_lse;
    {
      ScopedIsa isa(IsaLevel::kGeneric);
      const AttentionTask whole = p.Task(&want, &want_lse);
      Attention(p.shape, p.layout, &whole, 1, serial);
    }
    Problem other(9, 3, 64, dtype);
    for (int h = 0; h < 3; ++h)
      other.segments.push_back(MakeSegment(p.layout, Range(0, 90), 40 + h));
    other.Finish({1, 1, 1});
    other.Queries({89, 3}, 31);
    for (IsaLevel level : AvailableLevels()) {
      ScopedIsa isa(level);
      for (Executor* executor : {static_cast<Executor*>(&serial), pool.get()}) {
        for (std::int32_t chunk : {1, 7, 64, 210}) {
          std::vector<float> out, lse;
          for (std::int32_t begin = 0; begin < 210; begin += chunk) {
            std::vector<float> o1, l1, o2, l2;
            const AttentionTask tasks[] = {other.Task(&o2, &l2),
                                           p.Task(&o1, &l1, begin, std::min(210, begin + chunk))};
            Attention(p.shape, p.layout, tasks, 2, *executor);
            out.insert(out.end(), o1.begin(), o1.end());
            lse.insert(lse.end(), l1.begin(), l1.end());
          }
          ASSERT_TRUE(SameBits(out, want)) << IsaName(level) << " chunk " << chunk;
          ASSERT_TRUE(SameBits(lse, want_lse)) << IsaName(level) << " chunk " << chunk;
        }
      }
    }
  }
}

// Rows after the query are the same as rows that are not there yet.
TEST(Attention, FutureRowsLeaveNoTrace) {
  SerialExecutor serial;
  for (std::int32_t query : {0, 14, 15, 16, 63, 64, 100}) {
    std::vector<float> outs[2], lses[2];
    for (int future = 0; future < 2; ++future) {
      Problem p(4, 1, 64, DType::kF32);
      // The same leading rows: MakeSegment draws data row by row.
      p.segments.push_back(MakeSegment(p.layout, Range(0, future == 0 ? query + 1 : 300), 50));
      p.Finish({1});
      p.Queries({query}, 51);
      const AttentionTask task = p.Task(&outs[future], &lses[future]);
      Attention(p.shape, p.layout, &task, 1, serial);
    }
    EXPECT_TRUE(SameBits(outs[0], outs[1])) << query;
    EXPECT_TRUE(SameBits(lses[0], lses[1])) << query;
  }
}

TEST(KeyMass, SameBitsOnEveryInstructionSet) {
  SerialExecutor serial;
  auto pool = MakeThreadPool(2);
  Problem p(6, 2, 64, DType::kBF16);
  for (int h = 0; h < 2; ++h) p.segments.push_back(MakeSegment(p.layout, Range(0, 150), 60 + h));
  p.Finish({1, 1});
  p.Queries(Range(100, 50), 62);
  std::vector<float> first;
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (Executor* executor : {static_cast<Executor*>(&serial), pool.get()}) {
      std::vector<float> out, lse, mass(300);
      const AttentionTask task = p.Task(&out, &lse);
      Attention(p.shape, p.layout, &task, 1, *executor);
      KeyMass(p.shape, p.layout, task, mass.data(), *executor);
      if (first.empty()) first = mass;
      EXPECT_TRUE(SameBits(mass, first)) << IsaName(level);
    }
  }
}

}  // namespace
}  // namespace baton
