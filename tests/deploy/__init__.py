"""What an operator deploys: images, compose file, secrets, health checks, and the guide to them."""
