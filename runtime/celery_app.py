"""The Celery application as a module attribute, for tools that take `-A` (Flower, `celery inspect`)."""

from runtime.resources import open_celery
from runtime.settings import settings

app = open_celery(settings())
app.conf.broker_transport = None  # Flower reads the kind of broker from the transport's name
