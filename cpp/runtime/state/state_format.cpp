#include "runtime/state/state_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace plait {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'\x89', 'P', 'L', 'A', 'I', 'T', 'K', 'V'};
constexpr size_t kEntryBytes = 20;
constexpr size_t kChecksumBytes = 8;

enum class Kind : uint32_t { facts, adapters, contents, rows };
constexpr uint32_t kFirstRows = static_cast<uint32_t>(Kind::rows);

Kind kind_at(size_t section) { return static_cast<Kind>(std::min<size_t>(section, kFirstRows)); }

std::string name_of(size_t section) {
    constexpr const char* kNames[] = {"facts", "adapters", "contents"};
    if (section < kFirstRows) return kNames[section];
    return text("rows of storage ", section - kFirstRows);
}

uint64_t head_bytes(size_t n_sections) {
    return kStateHeaderBytes + n_sections * kEntryBytes + kChecksumBytes;
}

class Writer {
public:
    template <typename T>
    requires std::is_arithmetic_v<T>
    void put(T value) {
        const auto bytes = std::as_bytes(std::span(&value, 1));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    void put_count(size_t n) { put(static_cast<uint32_t>(n)); }
    void put(const std::string& value) {
        put_count(value.size());
        const auto bytes = std::as_bytes(std::span(value));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    void put(const std::vector<int32_t>& values) {
        put_count(values.size());
        const auto bytes = std::as_bytes(std::span(values));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

// Reads values in order. Compares each length with the remaining bytes before allocating.
class Reader {
public:
    Reader(std::span<const std::byte> bytes, std::string section)
        : bytes_(bytes), section_(std::move(section)) {}

    template <typename T>
    T number() {
        T value;
        std::memcpy(&value, take(1, sizeof value).data(), sizeof value);
        return value;
    }
    uint32_t count(size_t min_bytes) {
        const auto n = number<uint32_t>();
        if (n > bytes_.size() / min_bytes)
            fail(text("claims ", n, " entries in the ", bytes_.size(), " bytes left"));
        return n;
    }
    std::string string() {
        const auto bytes = take(count(1), 1);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    std::vector<int32_t> numbers() {
        const uint32_t n = count(sizeof(int32_t));
        const auto bytes = take(n, sizeof(int32_t));
        std::vector<int32_t> values(n);
        if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
    // One of the first `n` values of an enumeration.
    template <typename Enum>
    Enum choice(uint8_t n) {
        const auto value = number<uint8_t>();
        if (value >= n) fail(text("has a value of ", int{value}, ", expected less than ", int{n}));
        return static_cast<Enum>(value);
    }
    void end() const {
        if (!bytes_.empty()) fail(text("has ", bytes_.size(), " bytes after its end"));
    }
    [[noreturn]] void fail(const std::string& why) const {
        throw StateError(text("the state is damaged: section \"", section_, "\" ", why));
    }

private:
    std::span<const std::byte> take(size_t n, size_t each) {
        if (n > bytes_.size() / each) fail("ends too early");
        const auto taken = bytes_.first(n * each);
        bytes_ = bytes_.subspan(n * each);
        return taken;
    }

    std::span<const std::byte> bytes_;
    std::string section_;
};

std::vector<std::byte> write_facts(const Facts& facts) {
    Writer writer;
    writer.put_count(facts.size());
    for (const Fact& fact : facts) {
        writer.put(fact.name);
        writer.put(fact.value);
    }
    return writer.take();
}

Facts read_facts(Reader reader) {
    Facts facts(reader.count(2 * sizeof(uint32_t)));
    for (Fact& fact : facts) {
        fact.name = reader.string();
        fact.value = reader.string();
    }
    reader.end();
    return facts;
}

std::vector<std::byte> write_adapters(const std::vector<ActiveChange>& active) {
    Writer writer;
    writer.put_count(active.size());
    for (const ActiveChange& change : active) {
        writer.put(change.identity);
        writer.put(change.scale);
    }
    return writer.take();
}

std::vector<ActiveChange> read_adapters(Reader reader) {
    std::vector<ActiveChange> active(reader.count(sizeof(uint32_t) + sizeof(float)));
    for (ActiveChange& change : active) {
        change.identity = reader.string();
        change.scale = reader.number<float>();
    }
    reader.end();
    return active;
}

std::vector<std::byte> write_contents(const MemoryState& memory) {
    Writer writer;
    writer.put(static_cast<uint8_t>(memory.whole));
    writer.put(memory.sequences);
    writer.put_count(memory.parts.size());
    for (const PartState& part : memory.parts) {
        writer.put(part.kind);
        writer.put(static_cast<uint8_t>(part.window.kind));
        writer.put(part.window.tokens);
        writer.put(part.n_items);
        writer.put(part.axes);
        writer.put(part.positions);
        writer.put(part.ordinals);
        writer.put_count(part.sequences.size());
        for (const SequenceState& sequence : part.sequences) {
            writer.put(sequence.unstored.begin);
            writer.put(sequence.unstored.end);
            writer.put(sequence.items);
        }
    }
    return writer.take();
}

PartState read_part(Reader& reader) {
    PartState part;
    part.kind = reader.number<uint8_t>();
    part.window.kind = reader.choice<WindowKind>(kNumWindowKinds);
    part.window.tokens = reader.number<int32_t>();
    part.n_items = reader.number<int32_t>();
    part.axes = reader.number<int32_t>();
    part.positions = reader.numbers();
    part.ordinals = reader.numbers();
    part.sequences.resize(reader.count(3 * sizeof(int32_t)));
    for (SequenceState& sequence : part.sequences) {
        sequence.unstored.begin = reader.number<int32_t>();
        sequence.unstored.end = reader.number<int32_t>();
        sequence.items = reader.numbers();
    }
    return part;
}

MemoryState read_contents(Reader reader) {
    MemoryState memory;
    memory.whole = reader.choice<bool>(2);
    memory.sequences = reader.numbers();
    constexpr size_t kMinPartBytes = 2 + 6 * sizeof(int32_t);
    const uint32_t n = reader.count(kMinPartBytes);
    for (uint32_t i = 0; i < n; ++i) memory.parts.push_back(read_part(reader));
    reader.end();
    return memory;
}

// Size and expected checksum of a section.
struct Entry {
    uint64_t bytes = 0;
    uint64_t checksum = 0;
};

std::vector<Entry> read_head(std::span<const std::byte> bytes) {
    Reader reader(bytes.subspan(kStateHeaderBytes - 12), "head");
    const auto n_sections = reader.number<uint32_t>();
    if (n_sections < kFirstRows || n_sections > bytes.size() / kEntryBytes ||
        head_bytes(n_sections) > bytes.size())
        reader.fail(text("claims ", n_sections, " sections"));
    const auto covered = bytes.first(head_bytes(n_sections) - kChecksumBytes);
    uint64_t expected = 0;
    std::memcpy(&expected, covered.data() + covered.size(), sizeof expected);
    if (checksum(covered) != expected) reader.fail("does not match its checksum");
    reader.number<uint64_t>();  // total bytes
    std::vector<Entry> entries(n_sections);
    std::optional<uint64_t> end = head_bytes(n_sections);
    for (size_t i = 0; i < n_sections; ++i) {
        if (reader.number<uint32_t>() != static_cast<uint32_t>(kind_at(i)))
            reader.fail(text("has another section instead of \"", name_of(i), "\""));
        entries[i].bytes = reader.number<uint64_t>();
        entries[i].checksum = reader.number<uint64_t>();
        if (end) end = checked_add(*end, entries[i].bytes);
    }
    if (end != bytes.size())
        reader.fail("claims sections whose total length differs from the length of the state");
    return entries;
}

}  // namespace

StateImage::StateImage(const Facts& facts, const std::vector<ActiveChange>& active,
                       const MemoryState& memory, std::vector<uint64_t> row_bytes)
    : row_bytes_(std::move(row_bytes)) {
    sections_.push_back(write_facts(facts));
    sections_.push_back(write_adapters(active));
    sections_.push_back(write_contents(memory));
}

uint64_t StateImage::bytes() const {
    uint64_t n = head_bytes(sections_.size() + row_bytes_.size());
    for (const auto& section : sections_) n += section.size();
    for (const uint64_t bytes : row_bytes_) n += bytes;
    return n;
}

std::span<std::byte> StateImage::rows(std::span<std::byte> target, size_t storage) const {
    uint64_t after = 0;
    for (size_t i = storage; i < row_bytes_.size(); ++i) after += row_bytes_[i];
    return target.subspan(target.size() - after, row_bytes_[storage]);
}

void StateImage::seal(std::span<std::byte> target) const {
    PLAIT_CHECK(target.size() == bytes());
    const size_t n_sections = sections_.size() + row_bytes_.size();
    Writer head;
    for (const char c : kMagic) head.put(c);
    head.put(kStateVersion);
    head.put_count(n_sections);
    head.put(static_cast<uint64_t>(target.size()));
    uint64_t at = head_bytes(n_sections);
    for (size_t i = 0; i < n_sections; ++i) {
        const bool is_rows = i >= sections_.size();
        const auto section =
            target.subspan(at, is_rows ? row_bytes_[i - sections_.size()] : sections_[i].size());
        if (!is_rows) std::ranges::copy(sections_[i], section.begin());
        head.put(static_cast<uint32_t>(kind_at(i)));
        head.put(static_cast<uint64_t>(section.size()));
        head.put(checksum(section));
        at += section.size();
    }
    std::vector<std::byte> bytes = head.take();
    const uint64_t sum = checksum(bytes);
    std::ranges::copy(bytes, target.begin());
    std::memcpy(target.data() + bytes.size(), &sum, sizeof sum);
}

uint64_t read_state_bytes(std::span<const std::byte> bytes) {
    const size_t n_magic = std::min(bytes.size(), sizeof kMagic);
    if (n_magic == 0 || std::memcmp(bytes.data(), kMagic, n_magic) != 0)
        throw StateError("this is not a saved state: the signature at its start is missing");
    if (bytes.size() < kStateHeaderBytes)
        throw StateError(text("the state is cut short after ", bytes.size(), " bytes"));
    Reader reader(bytes.subspan(sizeof kMagic), "head");
    if (const auto version = reader.number<uint32_t>(); version != kStateVersion)
        throw StateError(text("the state has version ", version, ", expected ", kStateVersion));
    reader.number<uint32_t>();  // sections
    return reader.number<uint64_t>();
}

StateReading read_state(std::span<const std::byte> bytes) {
    const uint64_t expected = read_state_bytes(bytes);
    if (bytes.size() != expected)
        throw StateError(text("the state has ", bytes.size(), " bytes, expected ", expected));
    StateReading state;
    const std::vector<Entry> entries = read_head(bytes);
    uint64_t at = head_bytes(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
        const auto section = bytes.subspan(at, entries[i].bytes);
        const Reader reader(section, name_of(i));
        if (checksum(section) != entries[i].checksum) reader.fail("does not match its checksum");
        switch (kind_at(i)) {
        case Kind::facts: state.facts = read_facts(reader); break;
        case Kind::adapters: state.active = read_adapters(reader); break;
        case Kind::contents: state.memory = read_contents(reader); break;
        case Kind::rows: state.rows.push_back(section); break;
        }
        at += section.size();
    }
    return state;
}

}  // namespace plait
