from fleet.options.v1 import options_pb2 as _options_pb2
from fleet.orchestrator.v1 import orchestrator_pb2 as _orchestrator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WebhookFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEBHOOK_FORMAT_UNSPECIFIED: _ClassVar[WebhookFormat]
    WEBHOOK_FORMAT_JSON: _ClassVar[WebhookFormat]
    WEBHOOK_FORMAT_SLACK: _ClassVar[WebhookFormat]
    WEBHOOK_FORMAT_DISCORD: _ClassVar[WebhookFormat]
    WEBHOOK_FORMAT_TELEGRAM: _ClassVar[WebhookFormat]

class DeliveryStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_STATUS_UNSPECIFIED: _ClassVar[DeliveryStatus]
    DELIVERY_STATUS_DELIVERED: _ClassVar[DeliveryStatus]
    DELIVERY_STATUS_RETRYING: _ClassVar[DeliveryStatus]
    DELIVERY_STATUS_DEAD: _ClassVar[DeliveryStatus]
WEBHOOK_FORMAT_UNSPECIFIED: WebhookFormat
WEBHOOK_FORMAT_JSON: WebhookFormat
WEBHOOK_FORMAT_SLACK: WebhookFormat
WEBHOOK_FORMAT_DISCORD: WebhookFormat
WEBHOOK_FORMAT_TELEGRAM: WebhookFormat
DELIVERY_STATUS_UNSPECIFIED: DeliveryStatus
DELIVERY_STATUS_DELIVERED: DeliveryStatus
DELIVERY_STATUS_RETRYING: DeliveryStatus
DELIVERY_STATUS_DEAD: DeliveryStatus

class WebhookFilter(_message.Message):
    __slots__ = ("task_id_prefix", "roles", "statuses", "include_parts")
    TASK_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PARTS_FIELD_NUMBER: _ClassVar[int]
    task_id_prefix: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    statuses: _containers.RepeatedScalarFieldContainer[_orchestrator_pb2.DeliberationStatus]
    include_parts: bool
    def __init__(self, task_id_prefix: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., statuses: _Optional[_Iterable[_Union[_orchestrator_pb2.DeliberationStatus, str]]] = ..., include_parts: _Optional[bool] = ...) -> None: ...

class Webhook(_message.Message):
    __slots__ = ("webhook_id", "url", "events", "format", "filter", "created_at_ms", "active", "disabled_reason", "disabled_at_ms", "dead_letters", "last_error", "consumer")
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DISABLED_REASON_FIELD_NUMBER: _ClassVar[int]
    DISABLED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    url: str
    events: _containers.RepeatedScalarFieldContainer[str]
    format: WebhookFormat
    filter: WebhookFilter
    created_at_ms: int
    active: bool
    disabled_reason: str
    disabled_at_ms: int
    dead_letters: int
    last_error: str
    consumer: str
    def __init__(self, webhook_id: _Optional[str] = ..., url: _Optional[str] = ..., events: _Optional[_Iterable[str]] = ..., format: _Optional[_Union[WebhookFormat, str]] = ..., filter: _Optional[_Union[WebhookFilter, _Mapping]] = ..., created_at_ms: _Optional[int] = ..., active: _Optional[bool] = ..., disabled_reason: _Optional[str] = ..., disabled_at_ms: _Optional[int] = ..., dead_letters: _Optional[int] = ..., last_error: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class CreateWebhookRequest(_message.Message):
    __slots__ = ("url", "events", "format", "filter", "webhook_id", "secret")
    URL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    url: str
    events: _containers.RepeatedScalarFieldContainer[str]
    format: WebhookFormat
    filter: WebhookFilter
    webhook_id: str
    secret: str
    def __init__(self, url: _Optional[str] = ..., events: _Optional[_Iterable[str]] = ..., format: _Optional[_Union[WebhookFormat, str]] = ..., filter: _Optional[_Union[WebhookFilter, _Mapping]] = ..., webhook_id: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class CreateWebhookResponse(_message.Message):
    __slots__ = ("webhook", "secret", "already_existed")
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    webhook: Webhook
    secret: str
    already_existed: bool
    def __init__(self, webhook: _Optional[_Union[Webhook, _Mapping]] = ..., secret: _Optional[str] = ..., already_existed: _Optional[bool] = ...) -> None: ...

class ListWebhooksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWebhooksResponse(_message.Message):
    __slots__ = ("webhooks",)
    WEBHOOKS_FIELD_NUMBER: _ClassVar[int]
    webhooks: _containers.RepeatedCompositeFieldContainer[Webhook]
    def __init__(self, webhooks: _Optional[_Iterable[_Union[Webhook, _Mapping]]] = ...) -> None: ...

class DeleteWebhookRequest(_message.Message):
    __slots__ = ("webhook_id",)
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    def __init__(self, webhook_id: _Optional[str] = ...) -> None: ...

class DeleteWebhookResponse(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...

class TestWebhookRequest(_message.Message):
    __slots__ = ("webhook_id",)
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    def __init__(self, webhook_id: _Optional[str] = ...) -> None: ...

class TestWebhookResponse(_message.Message):
    __slots__ = ("delivery", "enabled")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    delivery: Delivery
    enabled: bool
    def __init__(self, delivery: _Optional[_Union[Delivery, _Mapping]] = ..., enabled: _Optional[bool] = ...) -> None: ...

class ListDeliveriesRequest(_message.Message):
    __slots__ = ("webhook_id", "limit")
    WEBHOOK_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    webhook_id: str
    limit: int
    def __init__(self, webhook_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDeliveriesResponse(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("event_id", "type", "execution_id", "attempt", "status", "http_status", "error", "at_ms", "duration_ms", "next_at_ms")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    type: str
    execution_id: str
    attempt: int
    status: DeliveryStatus
    http_status: int
    error: str
    at_ms: int
    duration_ms: int
    next_at_ms: int
    def __init__(self, event_id: _Optional[str] = ..., type: _Optional[str] = ..., execution_id: _Optional[str] = ..., attempt: _Optional[int] = ..., status: _Optional[_Union[DeliveryStatus, str]] = ..., http_status: _Optional[int] = ..., error: _Optional[str] = ..., at_ms: _Optional[int] = ..., duration_ms: _Optional[int] = ..., next_at_ms: _Optional[int] = ...) -> None: ...
