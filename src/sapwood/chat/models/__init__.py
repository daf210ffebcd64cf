"""Requests to models: the loop of Pydantic AI, prices, token estimates, and limits of providers."""
