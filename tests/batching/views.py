"""What policies see, made by hand."""

from latebind.batching.policy import Models, ModelView


def models_of(*views: ModelView) -> Models:
    """Return these models, with those in their queues as they are."""
    models = Models(views)
    for view in views:
        models.enqueued(view, len(view.queue))
    return models
