"""A FastAPI service that accepts orders while Service Bus is down. One client for the life of the application.

TWINBUS_PRIMARY=… TWINBUS_SECONDARY=… uvicorn --app-dir examples fastapi_service:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from twinbus import BacklogUnavailableError, SendAvailabilityOptions
from twinbus.aio import PairedServiceBusClient


class Order(BaseModel):
    item: str
    quantity: int = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    name = os.environ.get("TWINBUS_PRIMARY_NAME")
    options = SendAvailabilityOptions(failover_interval=10, attempt_timeout=3, enable_syphon=True, primary_name=name)
    primary, secondary = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
    async with PairedServiceBusClient.from_connection_strings(primary, secondary, options=options) as client:
        app.state.client, app.state.orders = client, client.get_queue_sender("orders")
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> dict[str, Any]:
    message = ServiceBusMessage(order.model_dump_json(), content_type="application/json")
    try:
        receipt = await request.app.state.orders.send_messages(message, timeout=10)
    except BacklogUnavailableError:
        raise HTTPException(503, "not accepted anywhere", headers={"Retry-After": "10"}) from None
    return {"id": receipt.message_ids[0], "route": receipt.route.value}


@app.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """Well, also in an outage: orders are accepted. The entities say where they go."""
    status = request.app.state.client.status()
    return {"condition": status.condition.value, "entities": {one.path: one.state.value for one in status.entities}}


@app.api_route("/failover/{entity:path}", methods=["POST", "DELETE"], status_code=204)
async def fail_over(entity: str, request: Request) -> None:
    """Take sends of an entity away from the primary, or back. For operators: put it behind their login."""
    client = request.app.state.client
    (client.fail_over if request.method == "POST" else client.fail_back)(entity)
