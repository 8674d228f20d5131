#include "runtime/context.h"

#include <algorithm>

namespace plait {

Context::Context(std::shared_ptr<const LoadedModel> model, const ContextOptions& options)
    : model_(std::move(model)),
      settings_(resolve(options, model_->model())),
      session_(std::make_unique<Session>(model_, settings_, attachments_)) {
    const auto session = session_.lock();
    all_devices_ = session->devices().names();
    invariant_ = settings_.invariant && session->devices().invariant();
}

void Context::copy_state_to(const Context& other) const {
    if (this == &other) {
        session_.lock();  // throws if it is closed
        return;
    }
    Locked<Session>::with_both(session_, other.session_,
                               [](Session& from, Session& to) { from.copy_state_to(to); });
}

void Context::close() noexcept {
    session_.close([this](const Session& session) {
        last_stats_ = session.stats();
        last_used_devices_ = session.used_devices();
    });
}

bool Context::closed() const {
    return session_.with([](const Session* session) { return session == nullptr; });
}

std::vector<std::string> Context::devices() const {
    const uint32_t used = session_.with([this](const Session* session) {
        return session ? session->used_devices() : last_used_devices_;
    });
    std::vector<std::string> names;
    for (size_t d = 0; d < all_devices_.size(); ++d)
        if ((used >> d & 1) != 0) names.push_back(all_devices_[d]);
    return names;
}

Stats Context::stats() const {
    return session_.with(
        [this](const Session* session) { return session ? session->stats() : last_stats_; });
}

void Context::reset_stats() {
    session_.with([this](Session* session) {
        last_stats_ = {};
        if (session) session->reset_stats();
    });
}

void Context::close_sequence(SequenceId sequence) const {
    session_.with([sequence](Session* session) {
        if (session) session->close_sequence(sequence);
    });
}

std::vector<CapturedCall> Context::take_captured() {
    return session_.with([this](Session*) { return attachments_.recorder.take(); });
}

StoppedCapture Context::stop_capture() {
    return session_.with([this](Session*) {
        std::vector<CapturedCall> calls = attachments_.recorder.take();
        return StoppedCapture{std::move(calls), attachments_.recorder.stop()};
    });
}

std::vector<GradientCall> Context::take_gradients() {
    return session_.with([this](Session*) { return attachments_.gradients.take(); });
}

std::pair<std::vector<GradientCall>, std::shared_ptr<Loss>> Context::stop_gradients() {
    return session_.with([this](Session*) {
        std::vector<GradientCall> calls = attachments_.gradients.take();
        return std::pair(std::move(calls), attachments_.gradients.stop());
    });
}

std::shared_ptr<const ValueEdit> Context::stop_edit(uint64_t id) {
    return session_.with([this, id](Session* session) -> std::shared_ptr<const ValueEdit> {
        std::vector<Attachments::Edit>& edits = attachments_.edits;
        const auto found = std::ranges::find(edits, id, &Attachments::Edit::id);
        if (found == edits.end()) return nullptr;
        std::shared_ptr<const ValueEdit> edit = std::move(found->edit);
        edits.erase(found);
        if (session) session->use_edits();
        return edit;
    });
}

std::vector<TracedNode> Context::take_trace() const {
    return session_.with([](Session* session) {
        return session ? session->take_trace() : std::vector<TracedNode>{};
    });
}

}  // namespace plait
